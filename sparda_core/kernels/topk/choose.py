"""The way into top-k: picks the implementation by where the scores lie."""

from __future__ import annotations

import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.arrays import on_cpu
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.topk import cpu
from sparda_core.shapes import BlockSpec


def choose_blocks(scores: torch.Tensor, positions: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Forced blocks and the best of the free ones: see `topk.reference.choose_blocks`, which this equals exactly.

    scores [B, Hk, T, M] and int64 positions [B, T] give int32 [B, Hk, T, budget]. CPU tensors take the
    compiled kernel, others that of a GPU, which ranks in float32. Raises ConfigError on a shape or dtype that does not
    fit.
    """
    require_shape(scores, "scores", B=None, Hk=None, T=None, M=None)
    require_shape(positions, "positions", B=scores.shape[0], T=scores.shape[2])
    if positions.is_floating_point() or not scores.is_floating_point():
        raise ConfigError(f"scores are {scores.dtype}, positions {positions.dtype}; want a float and an integer dtype")
    if on_cpu(scores, positions):
        return cpu.choose_blocks(scores, positions, spec)
    from sparda_core.kernels.topk.gpu import choose_for_queries

    return choose_for_queries(scores, positions, spec)
