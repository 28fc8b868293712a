"""Entry scores to block scores on a CPU. Scoring kernels use `raise_blocks` and never store entry scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import compute_dtype, host_array, on_cpu
from sparda_core.kernels.jit import kernel
from sparda_core.kernels.pool.reference import pool_blocks as _reference


def pool_blocks(scores: torch.Tensor, *, per_block: int, blocks: int, spill: int = 1) -> torch.Tensor:
    """See `pool.reference.pool_blocks`; tensors on another device take the reference itself."""
    if not on_cpu(scores):
        return _reference(scores, per_block=per_block, blocks=blocks, spill=spill)
    rows = math.prod(scores.shape[:-1])
    flat = host_array(scores, compute_dtype(scores)).reshape(rows, scores.shape[-1])
    pooled = np.full((rows, blocks), -np.inf, dtype=flat.dtype)
    _pool_rows(flat, per_block, spill, pooled)
    return torch.from_numpy(pooled).to(scores.dtype).reshape(*scores.shape[:-1], blocks)


@kernel
def raise_blocks(pooled_M: npt.NDArray[Any], entry: int, score: float, per_block: int, spill: int) -> None:
    """Let one entry raise the score of every block it touches; NaN raises nothing.

    An entry belongs to the block it starts in; a block's last `spill` entries reach into the next one too, and
    further where a window is longer than a block.
    """
    for block in range(entry // per_block, min((entry + spill) // per_block + 1, pooled_M.size)):
        pooled_M[block] = max(pooled_M[block], score)


@kernel
def _pool_rows(scores_NC: npt.NDArray[Any], per_block: int, spill: int, pooled_NM: npt.NDArray[Any]) -> None:
    for row in range(scores_NC.shape[0]):
        for entry in range(scores_NC.shape[1]):
            raise_blocks(pooled_NM[row], entry, scores_NC[row, entry], per_block, spill)
