"""Pinned host memory as a tensor of the device, so that torch's kernels read and write it in stream order."""

from __future__ import annotations

from typing import Any

import torch

from sparda_core.errors import ConfigError

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class _Shown:
    """What torch asks of memory that somebody else owns; keeps the owner alive."""

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner = owner
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (owner.numel(),), "typestr": "|u1", "data": (owner.data_ptr(), False), "version": 3,
        }  # fmt: skip


def on_device(memory: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The uint8 [n] `memory` as a tensor of `device`, nothing copied; itself where it lies there already.

    Raises ConfigError unless it was pinned with that device current.

    Use indexing kernels on it (index_select, index_copy_): a plain copy of a slice would go to the copy engine as if
    it were device memory, and across two registered chunks it would fail.
    """
    if memory.device.type == device.type:
        return memory
    shown = torch.as_tensor(_Shown(memory), device=device)
    if shown.data_ptr() != memory.data_ptr():
        raise ConfigError(f"host memory pinned by another device cannot be shown on {device}: make it the current one")
    return shown


def as_words(rows: torch.Tensor) -> torch.Tensor:
    """The same memory [..., D] in the widest integers that fit: indexing kernels move one value a thread."""
    if not rows.numel():
        rows = rows.new_empty(rows.shape)  # a view as other values asks for strides, which nothing need not have
    width = rows.shape[-1] * rows.element_size()
    return rows.view(next(dtype for size, dtype in _WORDS if width % size == 0 and size >= rows.element_size()))
