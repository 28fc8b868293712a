"""Which cells are measured on a CPU: a handful, each for a reason. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.shapes import BlockSpec

SELECTORS = ("forecast", "query", "infinigen")
RUNTIMES = ("resident", "offload-sync", "offload-prefetch")


@attrs.frozen(kw_only=True)
class CpuLoad:
    """Cells that are measured in turns: one load, one link.

    methods   (selector, runtime) of each
    """

    tier: str
    groups: tuple[str, ...]
    context: int
    batch: int
    link_gb_s: float
    methods: tuple[tuple[str, str], ...]

    def cells(self, spec: BlockSpec, shape: str) -> Iterator[ValidationCell]:
        """In the order of `methods`; what is resident knows no link."""
        for selector, runtime in self.methods:
            yield ValidationCell(
                device="cpu", selector=selector, runtime=runtime, batch=self.batch, context=self.context, churn=None,
                engine="thread", block=spec.block, budget=spec.budget, sink=spec.sink, local=spec.local, shape=shape,
                link_gb_s=None if runtime == "resident" else self.link_gb_s,
            )  # fmt: skip


def cpu_loads(*, tokens: int, room: int, link_gb_s: float) -> tuple[CpuLoad, ...]:
    """Loads on a document of `tokens` tokens, of which the last `room` are fed; a step's transfers take about 0.6 of
    its compute over `link_gb_s`.

    The profile is calibrated at half of the document and at its end, with one row, every selector resident, and of
    what offloads `random` and the first that looks ahead. So contexts in between are interpolated, `infinigen` and
    `query` offloaded are combinations that it has not seen, and two rows an axis that it has not seen; half the link
    is the one surrogate for a slower one that a machine without a device has.
    """
    middle, end = tokens * 3 // 4, tokens - room
    forecast = tuple(("forecast", runtime) for runtime in RUNTIMES)
    others = (("query", "offload-sync"), ("infinigen", "offload-sync"), ("infinigen", "offload-prefetch"))
    return (
        CpuLoad(tier="interpolated", groups=("link",), context=middle, batch=1, link_gb_s=link_gb_s, methods=forecast),
        CpuLoad(tier="combination", groups=(), context=middle, batch=1, link_gb_s=link_gb_s, methods=others),
        CpuLoad(tier="axis", groups=(), context=end, batch=2, link_gb_s=link_gb_s, methods=forecast),
        CpuLoad(
            tier="slope", groups=("link",), context=middle, batch=1, link_gb_s=link_gb_s / 2, methods=forecast[1:]
        ),
    )  # fmt: skip
