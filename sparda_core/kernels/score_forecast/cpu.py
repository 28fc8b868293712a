"""Scoring with the Forecast on a CPU: dot products, pooled as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import host_array, on_cpu
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.entry_arrays import entry_arrays
from sparda_core.kernels.jit import parallel_kernel, prange
from sparda_core.kernels.pool.cpu import raise_blocks
from sparda_core.kernels.pool.tensors import pool_blocks as pool_tensors
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as _reference
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

_Array = npt.NDArray[Any]
_Ints = npt.NDArray[np.int64]


def forecast_block_scores(
    forecast: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec
) -> torch.Tensor:
    """See `score_forecast.reference.forecast_block_scores`; tensors elsewhere take the reference, pooled at once.

    A score depends on its own query and entries alone, bit for bit: neighbours in the batch, chunking
    and capacity change nothing. Raises ConfigError on shapes that do not fit. Main thread only.
    """
    require_shape(forecast, "forecast", B=None, Hk=entries.buffer.shape[1], T=None, D=None)
    if not on_cpu(forecast, entries.buffer, positions):
        return _reference(forecast, entries, positions, spec, pool_tensors)
    seen = entry_arrays(forecast, entries, positions, spec)
    pooled = seen.pooled(forecast.shape[1])
    forecast_BHTD = host_array(forecast, seen.dtype)
    _score(forecast_BHTD, seen.buffer, seen.rows, seen.visible, spec.entries_per_block, spec.spill, pooled)
    return torch.from_numpy(pooled)


@parallel_kernel
def _score(
    forecast: _Array, buffer: _Array, rows: _Ints, visible: _Ints, per_block: int, spill: int, pooled: _Array
) -> None:
    batch, heads, queries, width = forecast.shape
    for i in prange(batch * heads * queries):
        row, head, query = i // (heads * queries), i // queries % heads, i % queries
        f_D = forecast[row, head, query]
        keys_CD = buffer[rows[row], head]
        for c in range(visible[row, query]):
            score = f_D[0] * 0
            for d in range(width):
                score += f_D[d] * keys_CD[c, d]
            raise_blocks(pooled[row, head, query], c, score, per_block, spill)
