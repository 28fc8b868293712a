"""Scoring with a proxy query over partial keys, token by token (InfiniGen)."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype, group_size
from sparda_core.kernels.pool.reference import pool_blocks
from sparda_core.kernels.visible import blocks_to_score
from sparda_core.shapes import BlockSpec

#: Tokens before a block that count for it though they do not touch it: the release pools 65 of them at block 64.
TOKEN_SPILL = 1


def proxy_block_scores(
    query: torch.Tensor, partial: torch.Tensor, counts: torch.Tensor, positions: torch.Tensor,
    spec: BlockSpec, scale: float,
) -> torch.Tensor:  # fmt: skip
    """Block scores of a proxy query: logits summed over the group's heads, the best token of each block.

    query      float [B, Hq, T, w], w channels kept of D; head h belongs to KV head h // G
    partial    float [B, Hk, N, w], the same channels of every token's key; undefined beyond a row's count
    counts     int64 [B], tokens whose partial keys are known
    positions  int64 [B, T], absolute; negative for an inactive row
    returns    [B, Hk, T, M], M = max(positions) // block + 1, float64 if an input is, else float32.
               Block b takes the largest of tokens block * b - 1 .. block * (b + 1) - 1 (pooling of
               width block + 1, as entries have R + 1); tokens beyond the count or after the query do
               not exist; a block without a token gets -inf
    """
    dtype = compute_dtype(query, partial)
    group = group_size(query, partial.shape[1])
    token = torch.arange(partial.shape[2], device=partial.device)
    logits = torch.zeros((), dtype=dtype, device=partial.device)
    for member in range(group):
        heads = query[:, member::group].to(dtype)
        logits = logits + torch.einsum("bhtw,bhnw->bhtn", heads, partial.to(dtype)) * scale
    seen = (token <= positions[..., None]) & (token < counts[:, None, None])
    logits = torch.where(seen[:, None], logits, -torch.inf)
    return pool_blocks(logits, per_block=spec.block, blocks=blocks_to_score(positions, spec), spill=TOKEN_SPILL)
