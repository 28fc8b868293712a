"""Scoring with a proxy query on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import compute_dtype, group_size, host_array, on_cpu
from sparda_core.kernels.checks import require_ids, require_shape
from sparda_core.kernels.jit import parallel_kernel, prange
from sparda_core.kernels.pool.cpu import raise_blocks
from sparda_core.kernels.score_proxy.reference import TOKEN_SPILL
from sparda_core.kernels.score_proxy.reference import proxy_block_scores as _reference
from sparda_core.shapes import BlockSpec

_Array = npt.NDArray[Any]
_Ints = npt.NDArray[np.int64]


def proxy_block_scores(
    query: torch.Tensor, partial: torch.Tensor, counts: torch.Tensor, positions: torch.Tensor,
    spec: BlockSpec, scale: float,
) -> torch.Tensor:  # fmt: skip
    """See `score_proxy.reference.proxy_block_scores`; tensors on another device take the reference itself.

    The group's queries are added up first: the sum of their logits is the logit of their sum, so one
    pass with Hk heads is enough. Neighbours in the batch and chunking change nothing, bit for bit.
    Raises ConfigError on shapes that do not fit. Main thread only.
    """
    batch, _, queries, channels = query.shape
    require_shape(partial, "partial", B=batch, Hk=None, N=None, w=channels)
    require_shape(counts, "counts", B=batch)
    require_shape(positions, "positions", B=batch, T=queries)
    group = group_size(query, partial.shape[1])
    if not on_cpu(query, partial, counts, positions):
        return _reference(query, partial, counts, positions, spec, scale)
    dtype = compute_dtype(query, partial)
    known, where = host_array(counts, torch.int64), host_array(positions, torch.int64)
    require_ids(known, "counts", low=0, high=partial.shape[2] + 1)
    blocks = int(where.max()) // spec.block + 1 if where.size else 0
    query_BHTw = host_array(query, dtype)
    pooled = np.full((batch, partial.shape[1], queries, blocks), -np.inf, dtype=query_BHTw.dtype)
    visible = np.clip(where + 1, 0, known[:, None])
    _score(query_BHTw, host_array(partial, dtype), visible, group, scale, spec.block, TOKEN_SPILL, pooled)
    return torch.from_numpy(pooled)


@parallel_kernel
def _score(
    query: _Array, partial: _Array, visible: _Ints, group: int, scale: float, block: int, spill: int, pooled: _Array
) -> None:
    batch, heads, queries, _ = pooled.shape
    width = query.shape[3]
    for i in prange(batch * heads * queries):
        row, head, t = i // (heads * queries), i // queries % heads, i % queries
        sum_w = np.zeros(width, query.dtype)
        for member in range(group):
            for d in range(width):
                sum_w[d] += query[row, head * group + member, t, d]
        for d in range(width):
            sum_w[d] *= scale
        keys_Nw = partial[row, head]
        for n in range(visible[row, t]):
            logit = sum_w[0] * 0
            for d in range(width):
                logit += sum_w[d] * keys_Nw[n, d]
            raise_blocks(pooled[row, head, t], n, logit, block, spill)
