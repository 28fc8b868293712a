"""Recall of a selection against a reference selection of the same state, beside what chance would reach."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.shapes import BlockSpec

Mask = npt.NDArray[np.bool_]


@attrs.frozen(kw_only=True)
class Recall:
    """Means over selections (one per row, KV head and query). NaN where nothing could be judged.

    free      share of the reference's free blocks that were selected
    all       share of all its blocks, forced ones included: near 1 for anything, so read `free` first
    chance    `free` of a uniformly random choice of as many free blocks as the reference has:
              its free blocks / eligible blocks, averaged
    count     selections that had a free block to find
    """

    free: float
    all: float
    chance: float
    count: int

    @property
    def corrected(self) -> float:
        """(free - chance) / (1 - chance): 0 at chance, 1 at the reference; NaN where chance is 1."""
        return (self.free - self.chance) / (1 - self.chance) if self.chance < 1 else float("nan")


@attrs.define(kw_only=True)
class RecallTally:
    """Running sums behind a Recall; tallies of different layers, steps and documents add up."""

    spec: BlockSpec
    _free: float = attrs.field(default=0.0, init=False)
    _chance: float = attrs.field(default=0.0, init=False)
    _count: int = attrs.field(default=0, init=False)
    _all: float = attrs.field(default=0.0, init=False)
    _all_count: int = attrs.field(default=0, init=False)

    def add(self, chosen: Selection, reference: Selection, positions: npt.NDArray[np.int64]) -> None:
        """Count one batch of selections.

        chosen, reference  int32 [B, Hk, T, width], each with its own width; -1 padded
        positions          int64 [B, T]; negative ones (inactive rows) are left out
        Forced blocks are those of this tally's spec, whatever spec `chosen` was made with. Raises
        ConfigError where the leading shapes differ.
        """
        shape = chosen.shape[:3]
        if reference.shape[:3] != shape or positions.shape != (shape[0], shape[2]):
            raise ConfigError(
                f"chosen {chosen.shape}, reference {reference.shape} and positions {positions.shape} "
                "must agree in [B, Hk, T]"
            )
        found = _isin(reference, chosen)
        valid = (reference != NO_BLOCK) & (positions >= 0)[:, None, :, None]
        free = valid & ~forced_mask(reference, positions, self.spec)
        eligible = eligible_blocks(positions, self.spec)[:, None, :]
        wanted = free.sum(-1)
        some = wanted > 0
        self._free += float(((found & free).sum(-1)[some] / wanted[some]).sum())
        self._chance += float((wanted / np.maximum(eligible, 1))[some].sum())
        self._count += int(some.sum())
        every = valid.sum(-1)
        self._all += float(((found & valid).sum(-1)[every > 0] / every[every > 0]).sum())
        self._all_count += int((every > 0).sum())

    def merge(self, other: RecallTally) -> None:
        """Add another tally of the same spec."""
        if other.spec != self.spec:
            raise ConfigError("tallies of different block specs cannot be added: their forced blocks differ")
        self._free += other._free
        self._chance += other._chance
        self._count += other._count
        self._all += other._all
        self._all_count += other._all_count

    def result(self) -> Recall:
        """The means so far."""
        nan = float("nan")
        n, m = self._count, self._all_count
        return Recall(
            free=self._free / n if n else nan,
            all=self._all / m if m else nan,
            chance=self._chance / n if n else nan,
            count=n,
        )


def forced_mask(ids: Selection, positions: npt.NDArray[np.int64], spec: BlockSpec) -> Mask:
    """Which ids are forced for their query: bool like ids [B, Hk, T, width]; padding is False."""
    current = (positions // spec.block)[:, None, :, None]
    return (ids >= 0) & (ids <= current) & ((ids < spec.sink) | (ids >= current - spec.local))


def eligible_blocks(positions: npt.NDArray[np.int64], spec: BlockSpec) -> npt.NDArray[np.int64]:
    """Visible blocks that are not forced, int64 like positions; 0 for negative positions."""
    visible = positions // spec.block + 1
    band = np.minimum(visible, spec.local + 1)
    sink = np.minimum(visible - band, spec.sink)
    return np.where(positions >= 0, visible - band - sink, 0)


def _isin(ids: Selection, chosen: Selection) -> Mask:
    """Whether each id is among the chosen ones of the same (row, head, query)."""
    return np.asarray((ids[..., :, None] == chosen[..., None, :]).any(-1), dtype=np.bool_)
