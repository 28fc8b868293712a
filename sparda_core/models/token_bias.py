"""The token bias of a NOSA model: what a token is worth to every later query, learned, from its value alone.

    bias[t, g] = A[g] * softplus(delta(v[t, 0] ++ v[t, 1] ++ ...))[g]

Attention adds it to the logits of the token for all query heads of KV head g. Values carry no positions, so a bias is
fixed once it is computed. Source: NOSA (arXiv 2510.13602) and its release, where it is called CIS.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.kernels.arrays import compute_dtype
from sparda_core.shapes import ModelShape


@attrs.frozen(eq=False)
class BiasWeights:
    """One layer's. Hk KV heads, D head dim.

    scale  A, [Hk]
    delta  [Hk, Hk * D], a linear map without an offset
    """

    scale: torch.Tensor
    delta: torch.Tensor

    def to(self, device: torch.device) -> BiasWeights:
        """The same on another device."""
        return BiasWeights(scale=self.scale.to(device), delta=self.delta.to(device))


def bias_keys(layer: int) -> tuple[str, str]:
    """Checkpoint names of a layer's scale and delta."""
    return f"model.layers.{layer}.self_attn.A", f"model.layers.{layer}.self_attn.delta.weight"


def bias_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of the bias by name; none where the model has no bias."""
    heads, width = shape.kv_heads, shape.kv_heads * shape.head_dim
    layers = range(shape.layers) if shape.token_bias else ()
    return {
        name: size for layer in layers for name, size in zip(bias_keys(layer), ((heads,), (heads, width)), strict=True)
    }


def bias_weights(weights: Mapping[str, torch.Tensor], layer: int) -> BiasWeights:
    """A layer's weights out of a checkpoint."""
    scale, delta = (weights[name] for name in bias_keys(layer))
    return BiasWeights(scale=scale, delta=delta.contiguous())


def token_bias(weights: BiasWeights, value: torch.Tensor) -> torch.Tensor:
    """Values [B, Hk, T, D] -> [B, Hk, T], float64 for float64 values, else float32 whatever their dtype."""
    dtype = compute_dtype(value)
    together = value.transpose(1, 2).flatten(2).to(dtype)
    bias = F.softplus(F.linear(together, weights.delta.to(dtype))) * weights.scale.to(dtype)
    return bias.transpose(1, 2)
