"""Keys to entries on a CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.arrays import compute_dtype, host_array, on_cpu
from sparda_core.kernels.compress.reference import compress as _reference
from sparda_core.kernels.jit import kernel

_Array = npt.NDArray[Any]


def compress(keys: torch.Tensor, *, window: int, stride: int) -> torch.Tensor:
    """See `compress.reference.compress`; tensors on another device take the reference itself.

    An entry depends on its own keys alone, bit for bit: however a sequence is cut into chunks, its
    entries are the same. Raises ConfigError unless window and stride are at least 1.
    """
    if window < 1 or stride < 1 or keys.ndim < 2:
        raise ConfigError(f"window={window}, stride={stride} must be >= 1, and keys {list(keys.shape)} [..., N, D]")
    if not on_cpu(keys):
        return _reference(keys, window=window, stride=stride)
    *lead, tokens, width = keys.shape
    count = 0 if tokens < window else (tokens - window) // stride + 1
    sequences = math.prod(lead)
    flat = host_array(keys, compute_dtype(keys)).reshape(sequences, tokens, width)
    entries = np.zeros((sequences, count, width), dtype=flat.dtype)
    _compress(flat, window, stride, entries)
    return torch.from_numpy(entries).to(keys.dtype).reshape(*lead, count, width)


@kernel
def _compress(keys_SND: _Array, window: int, stride: int, entries_SCD: _Array) -> None:
    sequences, count, width = entries_SCD.shape
    for s in range(sequences):
        for c in range(count):
            for n in range(stride * c, stride * c + window):
                for d in range(width):
                    entries_SCD[s, c, d] += keys_SND[s, n, d]
            for d in range(width):
                entries_SCD[s, c, d] /= window
