"""Forecast projections: the tensors, where they come from and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.errors import WeightsError
from sparda_core.files import parse_json
from sparda_core.models.files import read_tensors, write_tensors
from sparda_core.models.forecast_names import OWN_KEY, find_forecast, following_key
from sparda_core.models.forecast_pt import is_pt, read_pt
from sparda_core.models.weights import check_shapes, check_values, some
from sparda_core.shapes import ModelShape

__all__ = [
    "HINT", "OWN_KEY", "ForecastWeights", "check_forecast", "following_key", "load_forecast", "query_mean",
    "read_forecast", "save_forecast",
]  # fmt: skip

HINT = "train one with `sparda train`, or choose selector 'query', which needs none"


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


def query_mean(query_rows: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """Mean over each group of a layer's query rows: [Hq * D, hidden] -> [Hk * D, hidden].

    A Forecast that starts here scores an entry as the mean of the group's raw logits would,
    if the query were taken from the input one layer early.
    """
    grouped = query_rows.view(shape.kv_heads, shape.group, shape.head_dim, shape.hidden)
    return grouped.mean(1).reshape(shape.kv_heads * shape.head_dim, shape.hidden)


def save_forecast(path: Path, forecast: ForecastWeights, *, dtype: torch.dtype = torch.float16) -> None:
    """Write the projections as safetensors, metadata as one JSON text under "sparda"; in one step."""
    tensors = {OWN_KEY: forecast.own.detach().to("cpu", dtype)}
    tensors |= {following_key(i): w.detach().to("cpu", dtype) for i, w in enumerate(forecast.following)}
    write_tensors(path, tensors, {"format": "pt", "sparda": json.dumps(dict(forecast.metadata), sort_keys=True)})


def read_forecast(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Forecast tensors of a file by their one name, mapped from disk, and its metadata; whichever are there.

    path    safetensors, or a checkpoint of the published release (.pt, read without running what its pickle asks for)
    raises  WeightsError if the file is absent or unreadable, or holds a name that is not understood
    """
    source = f"forecast={str(path)!r}"
    if not path.exists():
        raise WeightsError(f"{source} does not exist; {HINT}")
    try:
        if is_pt(path):
            return read_pt(path)
    except OSError as error:
        raise WeightsError(f"{source} cannot be read ({error}); name a file") from error
    tensors, metadata = read_tensors(path)
    try:
        known = dict(parse_json(metadata.get("sparda", "{}")))
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{source}: its metadata is no JSON object ({error}); {HINT}") from error
    return find_forecast(tensors, source=source), known


def load_forecast(path: Path, shape: ModelShape) -> ForecastWeights:
    """Read projections for `shape`, in the dtype they are stored in; a last layer's is ignored.

    path    see `read_forecast`
    raises  WeightsError if the file is absent or unreadable, or any projection is missing or
            misshaped; says how to get one.
    """
    source = f"forecast={str(path)!r}"
    tensors, known = read_forecast(path)
    size = (shape.kv_heads * shape.head_dim, shape.hidden)
    expected = {OWN_KEY: size} | {following_key(layer): size for layer in range(shape.layers - 1)}
    check_shapes(tensors, expected, source=source, hint=HINT)
    beyond = [name for name in tensors if name not in expected and name != following_key(shape.layers - 1)]
    if beyond:
        raise WeightsError(f"{source} is of a model with more layers than {shape.layers} ({some(beyond)}); {HINT}")
    check_values({name: tensors[name] for name in expected}, source=source, hint=HINT)
    following = tuple(tensors[following_key(layer)] for layer in range(shape.layers - 1))
    return ForecastWeights(following=following, own=tensors[OWN_KEY], metadata=known)
