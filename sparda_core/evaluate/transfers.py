"""Hits, misses, late and wasted blocks of a run, summed from its StepFacts."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sparda_core.errors import ConfigError
from sparda_core.evaluate.recall import eligible_blocks
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class Transfers:
    """Sums over offloaded layers, rows, heads and steps. Shares are NaN where no layer is offloaded.

    steps       steps counted
    selected    blocks selected; hits + misses
    free        of these, blocks that were not forced
    misses      blocks that had to be moved
    opened      blocks opened by a step's own token: hits without a transfer
    late        misses that the compute lane had to wait for
    wasted      blocks moved and evicted unread
    moved_bytes bytes of the misses
    """

    steps: int
    selected: int
    free: int
    misses: int
    opened: int
    late: int
    wasted: int
    moved_bytes: int

    @property
    def hits(self) -> int:
        """Blocks that were on the device already."""
        return self.selected - self.misses

    @property
    def hit_rate_all(self) -> float:
        """Hits / selected."""
        return self.hits / self.selected if self.selected else float("nan")

    @property
    def hit_rate_free(self) -> float:
        """1 - misses / free: what the choice left to a selector costs, forced blocks being at hand.

        Below 0 where forced blocks missed as well (a cold pool): leave the first steps out.
        """
        return 1 - self.misses / self.free if self.free else float("nan")

    @property
    def late_share(self) -> float:
        """Late / misses; 0 without misses."""
        return self.late / self.misses if self.misses else 0.0

    @property
    def wasted_share(self) -> float:
        """Wasted / misses; 0 without misses."""
        return self.wasted / self.misses if self.misses else 0.0

    @property
    def moved_bytes_per_step(self) -> float:
        """Bytes up the link in a mean step."""
        return self.moved_bytes / self.steps if self.steps else float("nan")


def summarise(
    facts: Sequence[StepFacts], *, spec: BlockSpec, block_bytes: float, resident_layers: int = 0
) -> Transfers:
    """Sum decode facts over the layers from `resident_layers` on.

    block_bytes  bytes of one block of one KV head, K and V
    raises       ConfigError for facts of a prefill
    """
    total = dict.fromkeys(("selected", "free", "misses", "opened", "late", "wasted"), 0)
    for step in facts:
        if step.new_tokens != 1:
            raise ConfigError(f"new_tokens={step.new_tokens} must be 1: transfers are summed over decode steps")
        for name in ("selected", "misses", "opened", "late", "wasted"):
            total[name] += int(getattr(step, name)[resident_layers:].sum())
        positions = step.lengths - 1
        forced = positions // spec.block + 1 - eligible_blocks(positions, spec)
        free = (step.selected[resident_layers:] - forced[None, :, None]).clip(min=0)
        total["free"] += int(free[:, step.active].sum())
    return Transfers(steps=len(facts), moved_bytes=round(total["misses"] * block_bytes), **total)
