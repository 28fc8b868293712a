"""Attention over chosen blocks, read where they lie."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype, group_size
from sparda_core.kernels.attend.bias import ListedBias


def attend_blocks(
    query: torch.Tensor, pool: torch.Tensor, physical: torch.Tensor, tokens: torch.Tensor,
    bias: ListedBias | None = None,
) -> torch.Tensor:  # fmt: skip
    """Softmax attention of each query over its own list of blocks.

    query     float [B, Hq, T, D]; head h belongs to KV head h // G
    pool      float [n, 2, block, D], K then V; memory beyond the visible tokens may hold anything
    physical  int64 [B, Hk, T, W], index into pool; -1 for none
    tokens    int32 [B, Hk, T, W], tokens visible in each block, counted from its start
    bias      added to the scaled logits of the listed tokens; None: nothing
    returns   [B, Hq, T, D], query's dtype, computed in float64 if an input is float64, else in float32;
              scale 1 / sqrt(D); a query that sees no token gets 0
    """
    dtype = compute_dtype(query, pool)
    group = group_size(query, physical.shape[1])
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    batch, heads, queries, _ = query.shape
    for row in range(batch):
        for head in range(heads):
            for t in range(queries):
                blocks, counts = physical[row, head // group, t].tolist(), tokens[row, head // group, t].tolist()
                listed = zip(blocks, counts, strict=True)
                seen = [pool[block, :, :count] for block, count in listed if block >= 0 and count > 0]
                if seen:
                    keys, values = torch.cat(seen, dim=1).to(dtype)
                    logits = keys @ query[row, head, t].to(dtype) / query.shape[-1] ** 0.5
                    if bias is not None:
                        logits = logits + _bias_of(bias, (row, head // group, t), blocks, counts, pool.shape[2])
                    out[row, head, t] = (torch.softmax(logits, dim=0) @ values).to(query.dtype)
    return out


def _bias_of(
    bias: ListedBias, place: tuple[int, int, int], blocks: list[int], counts: list[int], size: int
) -> torch.Tensor:
    """Biases of the visible tokens of one list, in its order."""
    row, head, t = place
    values, logical = bias.values[bias.rows[row], head], bias.blocks[row, head, t].tolist()
    parts = [
        values[here * size : here * size + count]
        for here, block, count in zip(logical, blocks, counts, strict=True)
        if block >= 0 and count > 0
    ]
    return torch.cat(parts)
