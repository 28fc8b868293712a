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
