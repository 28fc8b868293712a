"""What Triton kernels of ours ask of a tensor's strides: leading ones may be anything, the last axis is contiguous."""

from __future__ import annotations

import torch

from sparda_core.errors import ConfigError


def require_contiguous_rows(**tensors: torch.Tensor | None) -> None:
    """Raise ConfigError where the last axis of a tensor is not contiguous; None is skipped."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ConfigError(f"{name} has strides {tensor.stride()}; its last axis must be contiguous")


def headed(tensor: torch.Tensor | None) -> tuple[torch.Tensor | None, int, int]:
    """A [B, H, D] tensor as a kernel takes it: pointer, strides of row and head."""
    return (None, 0, 0) if tensor is None else (tensor, tensor.stride(0), tensor.stride(1))
