"""Causal attention over everything, one query at a time."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype, group_size


def attend_dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, offset: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention of query t, at position offset + t, over all keys up to that position.

    query         float [B, Hq, T, D]; head h belongs to KV head h // G
    keys, values  float [B, Hk, N, D], N >= offset + T
    bias          float [B, Hk, N], added to the scaled logits of each key; None: nothing
    returns       [B, Hq, T, D], query's dtype, computed in float64 if an input is float64, else in
                  float32; scale 1 / sqrt(D)
    """
    dtype = compute_dtype(query, keys, values)
    group = group_size(query, keys.shape[1])
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for t in range(query.shape[2]):
        seen = slice(0, offset + t + 1)
        for head in range(query.shape[1]):
            key, value = keys[:, head // group, seen].to(dtype), values[:, head // group, seen].to(dtype)
            logits = torch.einsum("bd,bnd->bn", query[:, head, t].to(dtype), key) / query.shape[-1] ** 0.5
            if bias is not None:
                logits = logits + bias[:, head // group, seen].to(dtype)
            out[:, head, t] = torch.einsum("bn,bnd->bd", torch.softmax(logits, dim=-1), value).to(query.dtype)
    return out
