"""What a diff gives, and what it refuses."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating]


@attrs.frozen(kw_only=True, eq=False)
class Slots:
    """Slot tables of one layer, changed in place by a diff. R places for rows, Hk KV heads, S slots.

    held    int64 [R, Hk, S], logical block in each slot, -1 = empty; no block twice in a (row, head)
    used    int64 [R, Hk, S], tick at which the slot's block was last selected
    unread  bool [R, Hk, S], the slot's block was transferred and no attention has read it yet
    """

    held: IntArray
    used: IntArray
    unread: npt.NDArray[np.bool_]


@attrs.frozen(kw_only=True, eq=False)
class Diff:
    """A selection seen against the slots: where its blocks lie, and which must still be moved there.

    physical     int64 [B, Hk, W], slot of each selected block as an index over all rows, heads and slots
                 ((place * Hk + head) * S + slot); -1 where the selection has none
    miss_rows    int64 [m], batch index (not row id) of each miss; misses lie in (row, head, block) order
    miss_heads   int64 [m], its KV head
    miss_blocks  int64 [m], its logical block
    miss_slots   int64 [m], the slot it must be moved to, counted as in `physical`
    misses       int64 [B, Hk], selected blocks to be transferred
    opened       int64 [B, Hk], selected blocks opened by this step's own token: a slot, no transfer
    wasted       int64 [B, Hk], blocks transferred earlier and dropped unread by this diff
    """

    physical: IntArray
    miss_rows: IntArray
    miss_heads: IntArray
    miss_blocks: IntArray
    miss_slots: IntArray
    misses: IntArray
    opened: IntArray
    wasted: IntArray

    def fields(self) -> dict[str, Any]:
        """Every array by name, for comparisons."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(Diff)}
