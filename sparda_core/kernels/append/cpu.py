"""Writing the keys and values of new tokens on a CPU; fit for any thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_ids, require_shape
from sparda_core.kernels.jit import kernel

_Array = npt.NDArray[Any]
_Ids = npt.NDArray[np.int64]


def append_tokens(pool: _Array, physical: _Ids, offsets: _Ids, key: _Array, value: _Array) -> None:
    """See `append.reference.append_tokens`. Nothing is written when a check fails.

    Raises ConfigError on shapes that do not fit, on a block outside the pool, on an offset outside its
    block and on a pool that is not contiguous.
    """
    batch, heads, count = physical.shape
    require_shape(pool, "pool", n=None, KV=2, block=None, D=None)
    require_shape(offsets, "offsets", B=batch, T=count)
    require_shape(key, "key", B=batch, Hk=heads, T=count, D=pool.shape[3])
    require_shape(value, "value", B=batch, Hk=heads, T=count, D=pool.shape[3])
    if not pool.flags.c_contiguous or pool.dtype not in (np.float32, np.float64):
        raise ConfigError(f"pool ({pool.dtype}) must be float32 or float64 and C-contiguous: it is written in place")
    blocks = np.ascontiguousarray(physical, dtype=np.int64)
    places = np.ascontiguousarray(offsets, dtype=np.int64)
    require_ids(blocks, "physical", low=-1, high=pool.shape[0])
    if not _places_lawful(blocks, places, pool.shape[2]):
        raise ConfigError(f"offsets of the tokens to write must be in [0, {pool.shape[2]}), the tokens of a block")
    _append(pool, blocks, places, np.ascontiguousarray(key, pool.dtype), np.ascontiguousarray(value, pool.dtype))


@kernel
def _places_lawful(physical: _Ids, offsets: _Ids, block: int) -> bool:
    """Whether every offset that will be used lies inside a block; those of skipped tokens may be anything."""
    batch, heads, count = physical.shape
    good = True
    for row in range(batch):
        for head in range(heads):
            for t in range(count):
                good &= physical[row, head, t] < 0 or 0 <= offsets[row, t] < block
    return good


@kernel
def _append(pool: _Array, physical: _Ids, offsets: _Ids, key: _Array, value: _Array) -> None:
    batch, heads, count, width = key.shape
    for row in range(batch):
        for head in range(heads):
            for t in range(count):
                block = physical[row, head, t]
                if block < 0:
                    continue
                for d in range(width):
                    pool[block, 0, offsets[row, t], d] = key[row, head, t, d]
                    pool[block, 1, offsets[row, t], d] = value[row, head, t, d]
