"""Selection against slots, in the most obvious way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.kernels.diff.result import Diff, FloatArray, IntArray, Slots
from sparda_core.policy import LAST_SELECTION, SCORE


def diff_slots(
    slots: Slots, places: IntArray, selection: npt.NDArray[np.int32], opened: IntArray, *, tick: int, policy: str,
    scores: FloatArray | None = None,
) -> Diff:  # fmt: skip
    """Give every selected block a slot, and list the blocks that must be transferred. Changes `slots`.

    places     int64 [B], place in `slots` of each batch row; no place twice
    selection  int32 [B, Hk, W], logical ids, ascending, -1 last, no repeats, at most S of them
    opened     int64 [B], the block that this step's own token opens; -1 for none
    tick       time of this selection; later selections have larger ticks
    policy     "last-selection": every block outside the selection is dropped first.
               When a slot is needed, the block goes that "lru": was selected least recently,
               "score": has the lowest score; ties to the lower slot
    scores     float [B, Hk, M] that led to the selection, for "score"; NaN and blocks at or beyond M rank as -inf

    A (row, head) that selects nothing sits the step out: its slots stay as they are.
    Misses take empty slots first, the lowest first; no slot of the current selection is ever a victim.
    """
    batch, heads, width = selection.shape
    physical = np.full((batch, heads, width), -1, np.int64)
    counts = {name: np.zeros((batch, heads), np.int64) for name in ("misses", "opened", "wasted")}
    missing: list[tuple[int, int, int, int]] = []
    for b in range(batch):
        for h in range(heads):
            wanted = [block for block in selection[b, h].tolist() if block >= 0]
            if wanted:
                one = _Head(slots, int(places[b]), h, policy, scores[b, h] if scores is not None else np.empty(0))
                if policy == LAST_SELECTION:
                    one.drop_others(set(wanted))
                for w, block in enumerate(wanted):
                    slot = one.find(block)
                    if slot < 0:
                        slot = one.victim(set(wanted))
                        one.fill(slot, block, transferred=block != opened[b])
                        if block != opened[b]:
                            missing.append((b, h, block, one.base + slot))
                            counts["misses"][b, h] += 1
                    slots.used[one.at][slot] = tick
                    physical[b, h, w] = one.base + slot
                counts["opened"][b, h] = int(opened[b]) in wanted
                counts["wasted"][b, h] = one.wasted
    listed = np.array(missing, np.int64).reshape(-1, 4).T
    return Diff(
        physical=physical, miss_rows=listed[0], miss_heads=listed[1], miss_blocks=listed[2], miss_slots=listed[3],
        **counts,
    )  # fmt: skip


class _Head:
    """Slots of one (row, KV head)."""

    def __init__(self, slots: Slots, place: int, head: int, policy: str, scores: FloatArray) -> None:
        self.policy, self.scores = policy, scores
        self.at = (place, head)
        self.held, self.used, self.unread = slots.held[self.at], slots.used[self.at], slots.unread[self.at]
        self.base = (place * slots.held.shape[1] + head) * slots.held.shape[2]
        self.wasted = 0

    def find(self, block: int) -> int:
        return next((slot for slot, held in enumerate(self.held.tolist()) if held == block), -1)

    def empty(self, slot: int) -> None:
        self.wasted += bool(self.unread[slot])
        self.held[slot], self.unread[slot] = -1, False

    def drop_others(self, wanted: set[int]) -> None:
        for slot, held in enumerate(self.held.tolist()):
            if held not in wanted:
                self.empty(slot)

    def victim(self, wanted: set[int]) -> int:
        """An empty slot, else that of the block outside `wanted` which the policy lets go; ties to the lower slot."""

        def rank(slot: int) -> tuple[Any, ...]:
            if self.held[slot] < 0:
                return (False, 0, slot)
            return (True, self.score(self.held[slot]) if self.policy == SCORE else self.used[slot], slot)

        return min((slot for slot, held in enumerate(self.held.tolist()) if held not in wanted), key=rank)

    def score(self, block: int) -> float:
        score = float(self.scores[block]) if block < self.scores.size else -math.inf
        return -math.inf if math.isnan(score) else score

    def fill(self, slot: int, block: int, *, transferred: bool) -> None:
        self.empty(slot)
        self.held[slot], self.unread[slot] = block, transferred
