"""Entry scores to block scores, as plainly as possible."""

from __future__ import annotations

import torch


def pool_blocks(scores: torch.Tensor, *, per_block: int, blocks: int, spill: int = 1) -> torch.Tensor:
    """Block scores: the best of the entries that reach into each block.

    scores     float [..., C]; NaN counts as -inf
    per_block  R, entries that start in one block (tokens per block for token scores)
    blocks     M, blocks to score; those without an entry get -inf
    spill      entries before a block that reach into it: window / stride - 1 (`BlockSpec.spill`)
    returns    [..., M], same dtype: block b is the largest of entries R*b - spill .. R*b + R - 1, clipped to
               [0, C), those that touch it (SparDA and InfLLM-V2, 32/16: width R + 1, one entry of padding on the left)
    """
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    pooled = scores.new_full((*scores.shape[:-1], blocks), -torch.inf)
    for block in range(blocks):
        reach = scores[..., max(0, per_block * block - spill) : per_block * (block + 1)]
        if reach.shape[-1]:
            pooled[..., block] = reach.amax(-1)
    return pooled
