"""Keys to entries: the mean of every full window."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype


def compress(keys: torch.Tensor, *, window: int, stride: int) -> torch.Tensor:
    """Entries of a sequence's keys (InfLLM-V2): entry c is the mean of tokens [stride * c, stride * c + window).

    keys     float [..., N, D], post-RoPE
    returns  [..., C, D], same dtype, averaged in float64 if that is it, else in float32; only full windows
             count: C = 0 below `window` tokens, else (N - window) // stride + 1
    """
    tokens = keys.shape[-2]
    starts = range(0, tokens - window + 1, stride)
    entries = keys.new_empty((*keys.shape[:-2], len(starts), keys.shape[-1]))
    for c, start in enumerate(starts):
        covered = keys[..., start : start + window, :].to(compute_dtype(keys))
        entries[..., c, :] = covered.mean(-2).to(keys.dtype)
    return entries
