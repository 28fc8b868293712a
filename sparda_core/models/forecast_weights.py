"""Forecast projections: the tensors, where they come from and the file that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from sparda_core.errors import WeightsError
from sparda_core.shapes import ModelShape

OWN_KEY = "model.layers.0.self_attn.q_curr_proj.weight"
HINT = "train one with `sparda train`, or choose selector 'query', which needs none"


def following_key(layer: int) -> str:
    """Name of the projection, applied in `layer`, that forecasts layer + 1."""
    return f"model.layers.{layer}.self_attn.q_future_proj.weight"


@attrs.frozen(kw_only=True, eq=False)
class ForecastWeights:
    """One linear map a layer, [Hk * D, hidden], from a layer's normed input to its forecast.

    following  entry l forecasts layer l + 1; the last layer has nothing to forecast, so L - 1 entries
    own        layer 0's forecast of itself, since no layer runs before it
    metadata   base model, block spec, objective, steps, seed, data hash, command
    """

    following: tuple[torch.Tensor, ...]
    own: torch.Tensor
    metadata: Mapping[str, Any] = attrs.field(factory=dict)


def check_forecast(forecast: ForecastWeights, shape: ModelShape, *, source: str = "Forecast") -> None:
    """Raise WeightsError unless there is one matrix [Hk * D, hidden] for layers 1..L-1 and one for layer 0."""
    want = (shape.kv_heads * shape.head_dim, shape.hidden)
    if len(forecast.following) != shape.layers - 1:
        raise WeightsError(
            f"{source} holds {len(forecast.following)} projections, must be {shape.layers - 1} "
            f"for layers={shape.layers}; {HINT}"
        )
    for name, tensor in ((OWN_KEY, forecast.own), *((following_key(i), t) for i, t in enumerate(forecast.following))):
        if tuple(tensor.shape) != want:
            raise WeightsError(f"{source}: {name} is {tuple(tensor.shape)}, must be {want}; {HINT}")
