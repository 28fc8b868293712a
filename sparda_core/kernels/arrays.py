"""Between torch tensors and the numpy arrays that CPU kernels read: dtypes, groups of heads, zero-copy views."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def compute_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """What references and kernels alike compute in: float64 if any input is, float32 otherwise.

    float16 and bfloat16 inputs are widened, which is exact. Raises ConfigError for other dtypes.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    if not dtypes <= _FLOATS:
        raise ConfigError(f"dtypes {sorted(map(str, dtypes))} must be among {sorted(map(str, _FLOATS))}")
    return torch.float64 if torch.float64 in dtypes else torch.float32


def on_cpu(*tensors: torch.Tensor) -> bool:
    """Whether all tensors lie in a CPU's memory, so that a numba kernel can read them."""
    return all(t.is_cpu for t in tensors)


def host_array(tensor: torch.Tensor, dtype: torch.dtype) -> npt.NDArray[Any]:
    """A C-contiguous numpy array of `dtype`; shares the tensor's memory unless that needs a conversion."""
    # Each torch call costs about a microsecond, and decoding does this for every layer: skip the idle ones.
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if tensor.requires_grad:
        tensor = tensor.detach()
    array: npt.NDArray[Any] = np.ascontiguousarray(tensor.numpy())
    return array


def group_size(query: torch.Tensor, kv_heads: int) -> int:
    """Query heads per KV head, G, of query [B, Hq, T, D]; raises ConfigError where Hk does not divide Hq."""
    if kv_heads < 1 or query.shape[1] % kv_heads:
        raise ConfigError(f"query has {query.shape[1]} heads, not a multiple of kv_heads={kv_heads}")
    return query.shape[1] // kv_heads
