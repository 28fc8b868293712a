"""RMSNorm."""

from __future__ import annotations

import torch

from sparda_core.kernels.arrays import compute_dtype


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps), then times `weight`; x [B, hidden], weight [hidden] -> [B, hidden], x's dtype.

    Narrow dtypes are normalised in float32, rounded, then scaled: the order checkpoints were trained with.
    """
    wide = x.to(compute_dtype(x))
    normed = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    return (normed.to(x.dtype).to(wide.dtype) * weight.to(wide.dtype)).to(x.dtype)


def norm_heads(proj: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The first H heads of proj [B, F] each normalised on its own and scaled by its row of weight [H, D] -> [B, F].

    What lies behind H * D is as it was. Rounding as in `rms_norm`.
    """
    out, (heads, size) = proj.clone(), weight.shape
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        out[:, part] = rms_norm(proj[:, part], weight[head], eps=eps)
    return out
