"""Attention over chosen blocks on a CPU: every block is read once for all heads of its group."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import compute_dtype, group_size, host_array, on_cpu
from sparda_core.kernels.attend.bias import ListedBias
from sparda_core.kernels.attend.reference import attend_blocks as _reference
from sparda_core.kernels.checks import require_ids, require_shape
from sparda_core.kernels.jit import kernel, parallel_kernel, prange

_Array = npt.NDArray[Any]
_Ids = npt.NDArray[np.int64]
_Counts = npt.NDArray[np.int32]


def attend_blocks(
    query: torch.Tensor, pool: torch.Tensor, physical: torch.Tensor, tokens: torch.Tensor,
    bias: ListedBias | None = None,
) -> torch.Tensor:  # fmt: skip
    """See `attend.reference.attend_blocks`; tensors on another device take the reference itself.

    A pool in the computed dtype (that of a float32 or float64 query) is read in place; otherwise the
    blocks listed are first widened into a copy. Queries do not influence each other, bit for bit.
    Raises ConfigError on shapes, blocks or token counts outside the pool. Main thread only.
    """
    group = group_size(query, physical.shape[1])
    require_shape(pool, "pool", n=None, KV=2, block=None, D=query.shape[3])
    require_shape(physical, "physical", B=query.shape[0], Hk=query.shape[1] // group, T=query.shape[2], W=None)
    require_shape(tokens, "tokens", B=query.shape[0], Hk=query.shape[1] // group, T=query.shape[2], W=physical.shape[3])
    if not on_cpu(query, pool, physical, tokens):
        return _reference(query, pool, physical, tokens, bias)
    dtype = compute_dtype(query, pool)
    blocks, counts = host_array(physical, torch.int64), host_array(tokens, torch.int32)
    require_ids(blocks, "physical", low=-1, high=pool.shape[0])
    require_ids(counts, "tokens", low=0, high=pool.shape[2] + 1)
    biases = _no_bias(dtype) if bias is None else _bias_arrays(bias, blocks, counts, pool.shape[2], dtype)
    if pool.dtype != dtype or not pool.is_contiguous():
        used, places = np.unique(blocks, return_inverse=True)
        pool = pool[torch.from_numpy(used).clamp(min=0)]
        blocks = np.where(blocks < 0, -1, places.reshape(blocks.shape))
    query_BHTD = host_array(query, dtype)
    out = np.zeros_like(query_BHTD)
    scale = query_BHTD.dtype.type(query.shape[-1] ** -0.5)
    _attend(query_BHTD, host_array(pool, dtype), blocks, counts, scale, biases, out)
    return torch.from_numpy(out).to(query.dtype)


def _no_bias(dtype: torch.dtype) -> tuple[_Array, _Ids, _Counts]:
    """Arrays that say so: the kernel is compiled once."""
    nothing = host_array(torch.empty(0, 0, 0), dtype)
    return nothing, np.empty(0, np.int64), np.empty((0, 0, 0, 0), np.int32)


def _bias_arrays(
    bias: ListedBias, blocks: _Ids, counts: _Counts, block: int, dtype: torch.dtype
) -> tuple[_Array, _Ids, _Counts]:
    """Biases as the kernel takes them; raises ConfigError where a visible token would have none."""
    batch, heads, queries, width = blocks.shape
    require_shape(bias.values, "bias.values", R=None, Hk=heads, N=None)
    require_shape(bias.rows, "bias.rows", B=batch)
    require_shape(bias.blocks, "bias.blocks", B=batch, Hk=heads, T=queries, W=width)
    values, rows = bias.values, host_array(bias.rows, torch.int64)
    require_ids(rows, "bias.rows", low=0, high=values.shape[0])
    logical = host_array(bias.blocks, torch.int32)
    seen = (blocks >= 0) & (counts > 0)
    ends = np.where(seen, logical.astype(np.int64) * block + counts, 1)
    require_ids(ends, "bias.blocks (their last visible token)", low=1, high=values.shape[2] + 1)
    require_ids(np.where(seen, logical, 0), "bias.blocks", low=0, high=2**31)
    if values.dtype != dtype or not values.is_contiguous():
        values, rows = values[torch.from_numpy(rows)], np.arange(batch)
    return host_array(values, dtype), rows, logical


@parallel_kernel
def _attend(
    query: _Array, pool: _Array, physical: _Ids, tokens: _Counts, scale: float,
    biases: tuple[_Array, _Ids, _Counts], out: _Array,
) -> None:  # fmt: skip
    bias_RHN, bias_rows, logical = biases
    batch, heads, queries, width = physical.shape
    group = query.shape[1] // heads
    for i in prange(batch * heads * queries):
        row, head, t = i // (heads * queries), i // queries % heads, i % queries
        blocks_W, counts_W = physical[row, head, t], tokens[row, head, t]
        # A group's queries and outputs lie T rows apart; scratch lies contiguously, as SIMD wants it.
        group_GD = np.zeros((group, pool.shape[3]), query.dtype)
        weights_GN = np.empty((group, width * pool.shape[2]), query.dtype)
        for member in range(group):
            for d in range(pool.shape[3]):
                group_GD[member, d] = query[row, head * group + member, t, d]
        seen = _logits(group_GD, pool, blocks_W, counts_W, scale, weights_GN)
        if bias_RHN.size:
            bias_N = bias_RHN[bias_rows[row], head]
            _add_bias(bias_N, logical[row, head, t], blocks_W, counts_W, pool.shape[2], weights_GN)
        for member in range(group):
            _softmax(weights_GN[member], seen)
        _mix(weights_GN, pool, blocks_W, counts_W, group_GD)
        for member in range(group):
            for d in range(pool.shape[3]):
                out[row, head * group + member, t, d] = group_GD[member, d]


@kernel
def _logits(
    query_GD: _Array, pool: _Array, blocks_W: _Ids, counts_W: _Counts, scale: float, logits_GN: _Array
) -> int:
    """Scaled logits of every visible token, in list order; returns how many there are."""
    seen = 0
    for w in range(blocks_W.size):
        block = blocks_W[w]
        if block < 0:
            continue
        for j in range(counts_W[w]):
            for member in range(query_GD.shape[0]):
                logit = scale * 0
                for d in range(query_GD.shape[1]):
                    logit += query_GD[member, d] * pool[block, 0, j, d]
                logits_GN[member, seen] = logit * scale
            seen += 1
    return seen


@kernel
def _add_bias(
    bias_N: _Array, logical_W: _Counts, blocks_W: _Ids, counts_W: _Counts, block: int, logits_GN: _Array
) -> None:
    """The bias of every visible token, in list order, to the logits of the whole group."""
    seen = 0
    for w in range(blocks_W.size):
        if blocks_W[w] < 0:
            continue
        first = np.int64(logical_W[w]) * block
        for j in range(counts_W[w]):
            for member in range(logits_GN.shape[0]):
                logits_GN[member, seen] += bias_N[first + j]
            seen += 1


@kernel
def _softmax(weights_N: _Array, seen: int) -> None:
    """Turn the first `seen` logits into weights, in place."""
    if seen == 0:
        return
    top = weights_N[0]
    for n in range(1, seen):
        top = max(top, weights_N[n])
    total = top * 0
    for n in range(seen):
        weights_N[n] = math.exp(weights_N[n] - top)
        total += weights_N[n]
    for n in range(seen):
        weights_N[n] /= total


@kernel
def _mix(weights_GN: _Array, pool: _Array, blocks_W: _Ids, counts_W: _Counts, mixed_GD: _Array) -> None:
    """Values of the visible tokens, weighted, added in list order."""
    group, width = mixed_GD.shape
    for member in range(group):
        for d in range(width):
            mixed_GD[member, d] = 0
    seen = 0
    for w in range(blocks_W.size):
        block = blocks_W[w]
        if block < 0:
            continue
        for j in range(counts_W[w]):
            for member in range(group):
                weight = weights_GN[member, seen]
                for d in range(width):
                    mixed_GD[member, d] += weight * pool[block, 1, j, d]
            seen += 1
