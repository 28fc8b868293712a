"""Small host arrays to the device, in stream order and without waiting."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def upload(values: npt.NDArray[Any], target: torch.Tensor) -> torch.Tensor:
    """Copy `values` into `target` on the current stream; the array may be changed at once. Returns `target`.

    The staging memory is torch's own pinned cache, which does not hand it out again before the copy is over.
    """
    staged = torch.from_numpy(values.copy())
    if target.device.type == "cuda":
        staged = staged.pin_memory()
    return target.copy_(staged, non_blocking=True)
