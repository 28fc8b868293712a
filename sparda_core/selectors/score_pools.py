"""ScorePools: what pools under policy "score" would miss of a run while it is recorded. Torch-free.

That policy follows scores, which are many times larger than selections; so a recording keeps their outcome instead.
The tables are those of the runtimes' own pool, played by its own diff, without the blocks themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.kernels.diff.cpu import diff_slots
from sparda_core.kernels.diff.result import Slots
from sparda_core.policy import LRU, SCORE, SCORED_POOLS
from sparda_core.selection import Selection
from sparda_core.shapes import BlockSpec

Ints = npt.NDArray[np.int64]


class ScorePools:
    """Pools of SCORED_POOLS selections for each layer, row and KV head; empty but for each row's partial block.

    A row sits out where its position is negative; it must not in the first step.
    """

    def __init__(self, *, rows: int, kv_heads: int, spec: BlockSpec) -> None:
        self._rows, self._heads, self._spec = np.arange(rows), kv_heads, spec
        self._pools: dict[int, list[Slots]] = {}

    def play(self, layer: int, selection: Selection, positions: Ints, scores: npt.NDArray[np.floating]) -> Ints:
        """Misses int64 [3, B, Hk] of one layer's step.

        selection  int32 [B, Hk, W], ascending, -1 last
        positions  int64 [B], of each row's query; they grow from step to step
        scores     [B, Hk, M] that led to the selection
        """
        block = self._spec.block
        if layer not in self._pools:
            self._pools[layer] = [self._empty(multiple * self._spec.budget) for multiple in SCORED_POOLS]
            self._admit(layer, np.where(positions % block, positions // block, -1))
        opened = np.where((positions >= 0) & (positions % block == 0), positions // block, -1)
        given: dict[str, Any] = {"tick": int(positions.max()) + 1, "policy": SCORE, "scores": scores}
        chosen = np.ascontiguousarray(selection, np.int32)
        return np.stack([diff_slots(pool, self._rows, chosen, opened, **given).misses for pool in self._pools[layer]])

    def _admit(self, layer: int, tails: Ints) -> None:
        """The block that is being filled has its slot before the first step."""
        blocks = np.broadcast_to(tails[:, None, None], (len(tails), self._heads, 1)).astype(np.int32)
        for pool in self._pools[layer]:
            diff_slots(pool, self._rows, blocks, np.full(len(tails), -1), tick=0, policy=LRU)

    def _empty(self, slots: int) -> Slots:
        shape = (len(self._rows), self._heads, slots)
        held = np.full(shape, -1, np.int64)
        return Slots(held=held, used=np.zeros(shape, np.int64), unread=np.zeros(shape, np.bool_))
