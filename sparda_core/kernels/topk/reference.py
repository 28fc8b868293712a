"""Choosing blocks, one query at a time."""

from __future__ import annotations

import math

import torch

from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import BlockSpec


def choose_blocks(scores: torch.Tensor, positions: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Forced blocks and the best of the free ones, up to the budget.

    scores     float [B, Hk, T, M]; NaN ranks as -inf; blocks at or beyond M rank as -inf
    positions  int64 [B, T], absolute; a negative one marks an inactive row
    returns    int32 [B, Hk, T, budget]: ascending ids of blocks no later than the query's own, -1 last.
               Equal scores go to the lower id; blocks at -inf may still fill the budget. An inactive
               row gets -1 throughout.
    """
    batch, heads, queries, _ = scores.shape
    chosen = torch.full((batch, heads, queries, spec.budget), NO_BLOCK, dtype=torch.int32)
    for row in range(batch):
        for query in range(queries):
            position = int(positions[row, query])
            if position < 0:
                continue
            for head in range(heads):
                ids = _choose_one(scores[row, head, query].tolist(), position, spec)
                chosen[row, head, query, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return chosen.to(scores.device)


def _choose_one(scores: list[float], position: int, spec: BlockSpec) -> list[int]:
    def rank(block: int) -> tuple[float, int]:
        score = scores[block] if block < len(scores) else -math.inf
        return (math.inf if math.isnan(score) else -score, block)

    forced = set(spec.forced_blocks(position))
    free = [block for block in range(position // spec.block + 1) if block not in forced]
    best = sorted(free, key=rank)[: spec.budget - len(forced)]
    return sorted(forced.union(best))
