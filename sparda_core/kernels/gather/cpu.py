"""Copying blocks from one tier to another on a CPU: serial, without the GIL, without torch, for the copy lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_ids, require_shape
from sparda_core.kernels.jit import kernel

_Array = npt.NDArray[Any]
_Ids = npt.NDArray[np.int64]


def gather_blocks(source: _Array, target: _Array, source_ids: _Ids, target_ids: _Ids, start: int, stop: int) -> None:
    """See `gather.reference.gather_blocks`. Nothing is copied when a check fails.

    Raises ConfigError on tiers of different block shape or dtype or not contiguous, ids outside a
    tier, and a range outside [0, m).
    """
    require_shape(source, "source", n=None, KV=2, block=None, D=None)
    require_shape(target, "target", n=None, KV=2, block=source.shape[2], D=source.shape[3])
    require_shape(target_ids, "target_ids", m=source_ids.shape[0])
    if source.dtype != target.dtype or not (source.flags.c_contiguous and target.flags.c_contiguous):
        raise ConfigError(f"source ({source.dtype}) and target ({target.dtype}) must be C-contiguous and of one dtype")
    if not 0 <= start <= stop <= source_ids.shape[0]:
        raise ConfigError(f"start={start}, stop={stop} must lie in order in the {source_ids.shape[0]} blocks")
    sources = np.ascontiguousarray(source_ids[start:stop], dtype=np.int64)
    targets = np.ascontiguousarray(target_ids[start:stop], dtype=np.int64)
    require_ids(sources, "source_ids", low=0, high=source.shape[0])
    require_ids(targets, "target_ids", low=0, high=target.shape[0])
    _gather(source.reshape(source.shape[0], -1), target.reshape(target.shape[0], -1), sources, targets)


@kernel
def _gather(source_NX: _Array, target_NX: _Array, source_ids: _Ids, target_ids: _Ids) -> None:
    for i in range(source_ids.size):
        source, target = source_ids[i], target_ids[i]
        for x in range(source_NX.shape[1]):
            target_NX[target, x] = source_NX[source, x]
