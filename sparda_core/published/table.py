"""The paper's decode table: SparDA (arXiv 2606.04511), MiniCPM4.1-8B, 128K tokens of context, one 80 GB H100.

The figures come from a third-party copy of the paper's table, not from the paper itself.
"""

from __future__ import annotations

import enum

import attrs

#: Where the figures come from, as every output states it.
SOURCE = "SparDA, arXiv 2606.04511: decode throughput, MiniCPM4.1-8B, 128K context, H100 80 GB (third-party copy)"
CONTEXT = 131072
BATCHES = (4, 8, 16, 32, 64)
#: Out of memory in every mode, and so no part of the twenty cells.
TOO_LARGE = 128


class Mode(enum.StrEnum):
    """How the reference release runs a decode step."""

    RESIDENT = "no-offload"  # query-driven, everything on the GPU, changed blocks copied there and back
    SYNC = "sync"  # query-driven, every layer offloaded, transfers in line with the kernels
    NO_PREFETCH = "sparda-no-prefetch"  # Forecast, first layer resident, transfers in line
    PREFETCH = "sparda"  # Forecast, first layer resident, transfers on a stream of their own


@attrs.frozen(kw_only=True)
class Cell:
    """One cell of the table.

    tokens_per_s   decode, all rows together; None where no time is published
    out_of_memory  published as out of memory
    """

    batch: int
    mode: Mode
    tokens_per_s: float | None = None
    out_of_memory: bool = False

    @property
    def step_s(self) -> float | None:
        """Seconds of one step."""
        return None if self.tokens_per_s is None else self.batch / self.tokens_per_s


_PUBLISHED: dict[Mode, tuple[float | str | None, ...]] = {
    Mode.RESIDENT: (189.5, "oom", "oom", "oom", "oom", "oom"),
    Mode.SYNC: (167.8, 279.5, 447.9, 618.6, 788.9, "oom"),
    Mode.NO_PREFETCH: (247.3, None, 505.9, None, 696.9, "oom"),
    Mode.PREFETCH: (240.2, 471.2, 705.3, 899.2, 1000.1, "oom"),
}


def cells(*, too_large: bool = False) -> tuple[Cell, ...]:
    """The twenty cells, by batch and then by mode; with `too_large` also the four of batch 128."""
    batches = (*BATCHES, TOO_LARGE) if too_large else BATCHES
    return tuple(_cell(batch, mode, _PUBLISHED[mode][at]) for at, batch in enumerate(batches) for mode in Mode)


def _cell(batch: int, mode: Mode, figure: float | str | None) -> Cell:
    if isinstance(figure, str):
        return Cell(batch=batch, mode=mode, out_of_memory=True)
    return Cell(batch=batch, mode=mode, tokens_per_s=figure)
