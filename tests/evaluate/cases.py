"""Random lawful selections, for tests of what is computed from them."""

from __future__ import annotations

import numpy as np

from sparda_core.shapes import BlockSpec


def draw_selection(
    rng: np.random.Generator, positions: np.ndarray, heads: int, spec: BlockSpec, width: int
) -> np.ndarray:
    """int32 [B, heads, T, width]: forced blocks and random free ones; a few rows take fewer than they may."""
    rows, queries = positions.shape
    ids = np.full((rows, heads, queries, width), -1, np.int32)
    for (b, h, t), _ in np.ndenumerate(ids[..., 0]):
        position = int(positions[b, t])
        if position < 0:
            continue
        forced = spec.forced_blocks(position)
        free = [i for i in range(position // spec.block + 1) if i not in forced]
        take = int(rng.integers(0, min(len(free), width - len(forced)) + 1))
        chosen = sorted([*forced, *rng.choice(free, take, replace=False)] if take else forced)
        ids[b, h, t, : len(chosen)] = chosen
    return ids
