"""The world of the selectors' tests: that of sparda_core.testing, at one size."""

from __future__ import annotations

import torch

from sparda_core.testing.drive import Drive
from sparda_core.testing.world import HELD_SHAPE as SHAPE
from sparda_core.testing.world import HELD_SPEC as SPEC
from sparda_core.testing.world import World

__all__ = ["GROUP", "HEAD_DIM", "SHAPE", "SPEC", "Drive", "World", "query_of"]

GROUP, HEAD_DIM = SHAPE.group, SHAPE.head_dim


def query_of(layer: int, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[B, T, L * Hq * D] -> [B, Hq, T, D] of one target layer."""
    batch, tokens, _ = x.shape
    return x.view(batch, tokens, SHAPE.layers, SHAPE.q_heads, HEAD_DIM)[:, :, layer].transpose(1, 2)
