"""Blocks in float8: e4m3 values, one float32 scale for K and one for V. Works on any device, many blocks at once."""

from __future__ import annotations

import torch

#: Largest finite value of e4m3.
MOST = 448.0
#: Code of a NaN, whatever its sign was.
NAN_CODE = 0x7F


def quantise_blocks(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks [n, 2, block, D] of a float dtype.

    returns  uint8 [n, 2, block, D], e4m3 codes, and float32 [n, 2], what a value is multiplied by to get it back.
    The scale is the largest finite magnitude of a block's K (or V) over 448, and 1 where all are 0; it is
    never below float32's smallest normal number. Values are divided by it in float32 and rounded to nearest,
    ties to even. Infinite values become +-448 scales, NaN stays NaN.
    """
    wide = blocks.to(torch.float32)
    size = wide.abs()
    largest = torch.where(size < torch.inf, size, 0.0).amax(dim=(2, 3))
    scales = torch.where(largest > 0, (largest / MOST).clamp(min=torch.finfo(torch.float32).tiny), 1.0)
    codes = (wide / scales[:, :, None, None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.masked_fill(wide.isnan(), NAN_CODE), scales


def dequantise_blocks(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Blocks [n, 2, block, D] back from their codes: multiplied in float32, rounded to `dtype` once."""
    wide = codes.view(torch.float8_e4m3fn).to(torch.float32) * scales[:, :, None, None]
    return wide.to(dtype)
