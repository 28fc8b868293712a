"""Scoring with the true query on a CPU: softmax per head, sum over the group and pooling in one kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import group_size, host_array, on_cpu
from sparda_core.kernels.entry_arrays import entry_arrays
from sparda_core.kernels.jit import kernel, parallel_kernel, prange
from sparda_core.kernels.pool.cpu import raise_blocks
from sparda_core.kernels.pool.tensors import pool_blocks as pool_tensors
from sparda_core.kernels.score_query.reference import query_block_scores as _reference
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

_Array = npt.NDArray[Any]
_Ints = npt.NDArray[np.int64]


def query_block_scores(
    query: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec
) -> torch.Tensor:
    """See `score_query.reference.query_block_scores`; tensors elsewhere take the reference, pooled at once.

    A score depends on its own query and entries alone, bit for bit: neighbours in the batch, chunking
    and capacity change nothing. Raises ConfigError on shapes that do not fit. Main thread only.
    """
    group_size(query, entries.buffer.shape[1])
    if not on_cpu(query, entries.buffer, positions):
        return _reference(query, entries, positions, spec, pool_tensors)
    seen = entry_arrays(query, entries, positions, spec)
    pooled = seen.pooled(entries.buffer.shape[1])
    scale = pooled.dtype.type(query.shape[-1] ** -0.5)
    query_BHTD = host_array(query, seen.dtype)
    _score(query_BHTD, seen.buffer, seen.rows, seen.visible, scale, spec.entries_per_block, spec.spill, pooled)
    return torch.from_numpy(pooled)


@parallel_kernel
def _score(
    query: _Array, buffer: _Array, rows: _Ints, visible: _Ints, scale: float, per_block: int, spill: int,
    pooled: _Array,
) -> None:  # fmt: skip
    batch, heads, queries, _ = pooled.shape
    group = query.shape[1] // heads
    for i in prange(batch * heads * queries):
        row, head, t = i // (heads * queries), i // queries % heads, i % queries
        total_C = np.zeros(visible[row, t], query.dtype)
        chance_C = np.empty(visible[row, t], query.dtype)
        for member in range(group):
            _softmax(query[row, head * group + member, t], buffer[rows[row], head], scale, chance_C)
            for c in range(total_C.size):
                total_C[c] += chance_C[c]
        for c in range(total_C.size):
            raise_blocks(pooled[row, head, t], c, total_C[c], per_block, spill)


@kernel
def _softmax(query_D: _Array, keys_CD: _Array, scale: float, chance_C: _Array) -> None:
    if chance_C.size == 0:
        return
    for c in range(chance_C.size):
        logit = scale * 0
        for d in range(query_D.size):
            logit += query_D[d] * keys_CD[c, d]
        chance_C[c] = logit * scale
    top = chance_C.max()
    total = scale * 0
    for c in range(chance_C.size):
        chance_C[c] = math.exp(chance_C[c] - top)
        total += chance_C[c]
    for c in range(chance_C.size):
        chance_C[c] /= total
