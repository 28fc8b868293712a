"""Two-stage choice on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.arrays import compute_dtype, host_array, on_cpu
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.entry_arrays import entry_arrays
from sparda_core.kernels.jit import kernel, parallel_kernel, prange
from sparda_core.kernels.pool.cpu import raise_blocks
from sparda_core.kernels.shortlist.tensors import shortlist_scores as _on_tensors
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

_Array = npt.NDArray[Any]
_Ints = npt.NDArray[np.int64]
_Ids = npt.NDArray[np.int32]


def shortlist_scores(
    scores: torch.Tensor, means: EntryView, positions: torch.Tensor, spec: BlockSpec, *, keep: int
) -> torch.Tensor:
    """See `shortlist.reference.shortlist_scores`; tensors elsewhere take operations on whole tensors.

    A query's result depends on its own scores and means alone, bit for bit. Raises ConfigError on shapes that do not
    fit. Main thread only.
    """
    require_shape(scores, "scores", B=None, Hk=means.buffer.shape[1], T=None, M=None)
    if means.buffer.shape[-1] != 1:
        raise ConfigError(f"means have width {means.buffer.shape[-1]}; a token has one bias a KV head, so want 1")
    if not on_cpu(scores, means.buffer, positions):
        return _on_tensors(scores, means, positions, spec, keep=keep)
    first = choose_blocks(scores, positions, spec.with_budget(keep))
    # A query of ones and width 1: what entries are to scoring, means are here.
    like = scores.new_empty(1).expand(positions.shape[0], 1, positions.shape[1], 1)
    seen = entry_arrays(like, means, positions, spec)
    ranked = np.full(tuple(scores.shape), -np.inf, seen.buffer.dtype)
    reach = (spec.entries_per_block, spec.spill)
    _rank(seen.buffer, seen.rows, seen.visible, host_array(first, torch.int32), *reach, ranked)
    return torch.from_numpy(ranked).to(compute_dtype(scores))


@parallel_kernel
def _rank(means: _Array, rows: _Ints, visible: _Ints, first: _Ids, per_block: int, spill: int, ranked: _Array) -> None:
    batch, heads, queries, _ = ranked.shape
    for i in prange(batch * heads * queries):
        row, head, t = i // (heads * queries), i // queries % heads, i % queries
        ranked_M = ranked[row, head, t]
        _rank_one(means[rows[row], head], visible[row, t], first[row, head, t], per_block, spill, ranked_M)


@kernel
def _rank_one(means_C1: _Array, visible: int, first_W: _Ids, per_block: int, spill: int, ranked_M: _Array) -> None:
    for c in range(visible):
        raise_blocks(ranked_M, c, means_C1[c, 0], per_block, spill)
    for block in first_W:
        if 0 <= block < ranked_M.size:
            ranked_M[block] = np.inf
