"""Table look-ups of every decode step: numba, because a few microseconds are spent once a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.kernels.jit import kernel

IntArray = npt.NDArray[np.int64]


def find_blocks(
    table: IntArray, places: IntArray, positions: IntArray, reserved: IntArray, block: int
) -> tuple[IntArray, bool]:
    """Where the block of each position lies, and whether every position was below `reserved`.

    table      int64 [R, Hk, blocks], one layer's
    places     int64 [B], row of `table` of each batch row
    positions  int64 [B, T]; a negative one gives -1
    reserved   int64 [R], tokens
    returns    int64 [B, Hk, T], bool
    """
    found = np.full((positions.shape[0], table.shape[1], positions.shape[1]), -1, np.int64)
    return found, _find_blocks(table, places, positions, reserved, block, found)


@kernel
def _find_blocks(
    table: IntArray, places: IntArray, positions: IntArray, reserved: IntArray, block: int, found: IntArray
) -> bool:  # pragma: no cover - compiled
    batch, heads, width = found.shape
    for b in range(batch):
        place = places[b]
        for t in range(width):
            position = positions[b, t]
            if position >= reserved[place]:
                return False
            if position >= 0:
                for h in range(heads):
                    found[b, h, t] = table[place, h, position // block]
    return True


def find_slots(held: IntArray, places: IntArray, blocks: IntArray) -> IntArray:
    """Slot that holds each logical block, as an index over all rows, heads and slots; -1 where none does.

    held     int64 [R, Hk, slots], logical block in each slot, -1 = empty
    places   int64 [B], row of `held` of each batch row
    blocks   int64 [B, T]; a negative one gives -1
    returns  int64 [B, Hk, T]
    """
    found = np.full((blocks.shape[0], held.shape[1], blocks.shape[1]), -1, np.int64)
    _find_slots(held, places, blocks, found)
    return found


@kernel
def _find_slots(
    held: IntArray, places: IntArray, blocks: IntArray, found: IntArray
) -> None:  # pragma: no cover - compiled
    batch, heads, width = found.shape
    slots = held.shape[2]
    for b in range(batch):
        for h in range(heads):
            first = (places[b] * heads + h) * slots
            for t in range(width):
                if blocks[b, t] < 0:
                    continue
                for s in range(slots):
                    if held[places[b], h, s] == blocks[b, t]:
                        found[b, h, t] = first + s
                        break


def as_int64(values: Any) -> IntArray:
    """A contiguous int64 array of `values` (a sequence, an array or a CPU tensor), without a copy where it is one."""
    return np.ascontiguousarray(values, np.int64)
