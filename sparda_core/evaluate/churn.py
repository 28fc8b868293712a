"""Churn: how much of a selection was not in the row's previous one."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.evaluate.recall import forced_mask
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class Churn:
    """Shares over all counted steps; NaN where nothing was counted.

    free   fresh free blocks / free blocks
    all    fresh blocks / selected blocks; a block that the step's own token opened counts as fresh here
    count  selected blocks behind `all`
    """

    free: float
    all: float
    count: int


@attrs.define(kw_only=True)
class ChurnTally:
    """Running sums behind a Churn. Low churn is no merit without recall beside it."""

    spec: BlockSpec
    _fresh: int = attrs.field(default=0, init=False)
    _selected: int = attrs.field(default=0, init=False)
    _fresh_free: int = attrs.field(default=0, init=False)
    _free: int = attrs.field(default=0, init=False)

    def add(self, ids: Selection, previous: Selection, positions: npt.NDArray[np.int64]) -> None:
        """Count one step.

        ids, previous  int32 [B, Hk, T, width], the step's selections and the ones of the step before
        positions      int64 [B, T] of `ids`; negative ones (inactive rows) are left out
        """
        if ids.shape[:3] != previous.shape[:3]:
            raise ConfigError(f"ids {ids.shape} and previous {previous.shape} must agree in [B, Hk, T]")
        valid = (ids != NO_BLOCK) & (positions >= 0)[:, None, :, None]
        fresh = valid & ~(ids[..., :, None] == previous[..., None, :]).any(-1)
        free = valid & ~forced_mask(ids, positions, self.spec)
        self._fresh += int(fresh.sum())
        self._selected += int(valid.sum())
        self._fresh_free += int((fresh & free).sum())
        self._free += int(free.sum())

    def result(self) -> Churn:
        """The shares so far."""
        nan = float("nan")
        return Churn(
            free=self._fresh_free / self._free if self._free else nan,
            all=self._fresh / self._selected if self._selected else nan,
            count=self._selected,
        )
