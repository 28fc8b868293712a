"""Tensor half of `random`."""

from __future__ import annotations

import torch

from sparda_core.kernels.score_uniform.reference import uniform_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.selectors.scored import ScoredSelector


class BoundUniform(ScoredSelector):
    """Scores blocks by a hash."""

    def __init__(self, *, kv_heads: int, seed: int) -> None:
        self._kv_heads, self._seed = kv_heads, seed

    def scores(self, view: LayerView) -> torch.Tensor:
        """Float32 [B, Hk, T, M], uniform in [0, 1)."""
        return uniform_block_scores(
            view.positions, seed=self._seed, layer=view.layer, kv_heads=self._kv_heads, block=view.spec.block
        )
