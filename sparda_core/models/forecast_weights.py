"""Forecast projections: the tensors, where they come from and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
import torch

from sparda_core.errors import WeightsError
from sparda_core.files import parse_json
from sparda_core.models.files import read_tensors, write_tensors
from sparda_core.models.forecast_names import OWN_KEY, find_forecast, following_key, own_key
from sparda_core.models.forecast_pt import is_pt, read_pt
from sparda_core.models.weights import check_shapes, check_values, some
from sparda_core.shapes import ModelShape

__all__ = [
    "HINT", "OWN_KEY", "ForecastWeights", "check_forecast", "following_key", "load_forecast", "own_key",
    "query_mean", "read_forecast", "save_forecast",
]  # fmt: skip

HINT = "train one with `sparda train`, or choose selector 'query', which needs none"


@attrs.frozen(kw_only=True, eq=False)
class ForecastWeights:
    """One linear map a layer, [Hk * D, hidden], from a layer's normed input to its forecast.

    following  entry l forecasts layer l + lead; the last `lead` layers have nothing to forecast: L - lead entries
    own        layer 0's forecast of itself, since no layer runs before it
    own_more   those of layers 1 .. lead - 1, which no layer is early enough before either; none at lead 1
    metadata   base model, block spec, objective, lead, steps, seed, data hash, command
    """

    following: tuple[torch.Tensor, ...]
    own: torch.Tensor
    own_more: tuple[torch.Tensor, ...] = ()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, by_target: Sequence[torch.Tensor], *, lead: int, metadata: Mapping[str, Any] | None = None) -> Self:
        """From one matrix a layer, by the layer that it forecasts; the first `lead` are the layers' own."""
        own, *more = by_target[:lead]
        return cls(own=own, own_more=tuple(more), following=tuple(by_target[lead:]), metadata=metadata or {})

    @property
    def lead(self) -> int:
        """Layers between forecasting and attending."""
        return 1 + len(self.own_more)

    @property
    def by_target(self) -> tuple[torch.Tensor, ...]:
        """One matrix a layer, by the layer that it forecasts."""
        return (self.own, *self.own_more, *self.following)

    def named(self) -> dict[str, torch.Tensor]:
        """Every matrix by its name in a file."""
        own = {own_key(layer): w for layer, w in enumerate((self.own, *self.own_more))}
        return own | {following_key(layer): w for layer, w in enumerate(self.following)}


def check_forecast(forecast: ForecastWeights, shape: ModelShape, *, source: str = "Forecast") -> None:
    """Raise WeightsError unless there is one matrix [Hk * D, hidden] for every layer, its own only below `lead`."""
    want = (shape.kv_heads * shape.head_dim, shape.hidden)
    if len(forecast.by_target) != shape.layers:
        raise WeightsError(
            f"{source} of lead {forecast.lead} holds {len(forecast.following)} projections, "
            f"must be {shape.layers - forecast.lead} for layers={shape.layers}; {HINT}"
        )
    for name, tensor in forecast.named().items():
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
    tensors = {name: w.detach().to("cpu", dtype) for name, w in forecast.named().items()}
    metadata = dict(forecast.metadata)
    if forecast.lead != 1 or "lead" in metadata:
        metadata["lead"] = forecast.lead
    write_tensors(path, tensors, {"format": "pt", "sparda": json.dumps(metadata, sort_keys=True)})


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
    """Read projections for `shape`, in the dtype they are stored in; those of the last layers, of no use, are ignored.

    path    see `read_forecast`
    The lead is that of the metadata, 1 where it names none (SparDA's release).

    raises  WeightsError if the file is absent or unreadable, its lead does not fit, or any projection is missing,
            misshaped or more than its lead has use for; says how to get one.
    """
    source = f"forecast={str(path)!r}"
    tensors, known = read_forecast(path)
    lead = _lead(known, tensors, shape, source)
    names = [*map(own_key, range(lead)), *map(following_key, range(shape.layers - lead))]
    size = (shape.kv_heads * shape.head_dim, shape.hidden)
    check_shapes(tensors, dict.fromkeys(names, size), source=source, hint=HINT)
    last = set(map(following_key, range(shape.layers - lead, shape.layers)))
    if beyond := [name for name in tensors if name not in names and name not in last]:
        raise WeightsError(f"{source} is of a model with more layers than {shape.layers} ({some(beyond)}); {HINT}")
    check_values({name: tensors[name] for name in names}, source=source, hint=HINT)
    return ForecastWeights.of([tensors[name] for name in names], lead=lead, metadata=known)


def _lead(known: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], shape: ModelShape, source: str) -> int:
    lead = known.get("lead", 1)
    if isinstance(lead, bool) or not isinstance(lead, int) or not 1 <= lead < shape.layers:
        raise WeightsError(
            f"{source}: its metadata has lead={lead!r}, must be an integer from 1 to {shape.layers - 1} "
            f"for layers={shape.layers}; {HINT}"
        )
    more = [name for name in map(own_key, range(lead, shape.layers)) if name in tensors]
    if more:
        raise WeightsError(
            f"{source}: its metadata has lead={lead}, under which the first {lead} layers select for themselves, "
            f"and it holds {', '.join(more)}: it was written for another lead; {HINT}"
        )
    return lead
