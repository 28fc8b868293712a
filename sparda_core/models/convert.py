"""Forecast weights from the published release's format into ours and back, in any dtype that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.forecast_names import check_set, following_key, own_key
from sparda_core.models.forecast_pt import blank_last, write_pt
from sparda_core.models.forecast_weights import HINT, read_forecast
from sparda_core.models.stream import stream_tensors
from sparda_core.models.weights import check_narrowed, check_shapes, check_values
from sparda_core.shapes import ModelShape

#: A bound on what metadata may claim.
MOST_LAYERS = 10**6
#: Endings of a file that is written, and whether the release reads it.
ENDINGS = {".safetensors": False, ".pt": True}


@attrs.frozen(kw_only=True)
class Converted:
    """What was written: its tensors, their dtypes, and whether the last layer's was made of zeros for the format."""

    path: Path
    tensors: int
    parameters: int
    dtypes: tuple[str, ...]
    layers: int | None
    zeros_added: bool
    metadata: dict[str, Any]


def convert_forecast(
    source: Path, target: Path, *, dtype: torch.dtype | None = None, shape: ModelShape | None = None
) -> Converted:
    """Read Forecast weights of either format and write the one that `target` ends in.

    dtype   None: as stored
    shape   of the base model; where it is given, every tensor must fit it
    The release's format has a projection for every layer, though the last one forecasts nothing. Where ours has none,
    zeros are written for it, which no consumer reads; how many layers there are must then be known, from the file or
    from `shape`.
    raises  WeightsError for tensors that are missing, misshapen, not finite or too large for the dtype, ConfigError for
            another ending or an unknown number of layers, OSError when it cannot be written
    """
    if target.suffix not in ENDINGS:
        raise ConfigError(f"out={str(target)!r} must end in {' or '.join(ENDINGS)}: the ending says the format")
    said = f"forecast={str(source)!r}"
    tensors, metadata = read_forecast(source)
    check_values(tensors, source=said, hint=HINT)
    lead = _lead(metadata, said)
    held = check_set(tensors, lead, source=said, hint=HINT)
    layers = _layers(held, lead, metadata, shape, said)
    if shape is not None:
        size = (shape.kv_heads * shape.head_dim, shape.hidden)
        expected = (*map(own_key, range(lead)), *map(following_key, range(shape.layers - lead)))
        check_shapes(tensors, dict.fromkeys(expected, size), source=said, hint=HINT)
    if ENDINGS[target.suffix] and lead != 1:
        raise ConfigError(f"{said} has lead={lead}; the release's format knows lead 1 alone: write .safetensors")
    missing_last = ENDINGS[target.suffix] and layers != held
    if missing_last:
        if layers is None:
            raise ConfigError(
                f"{said} has {held} projections, and does not say whether its model has {held} or {held + 1} layers: "
                "name the model with --shape or --model"
            )
        tensors = blank_last(tensors, layers)
    if layers is not None:
        metadata = metadata | {"layers": layers}
    dtypes = {name: dtype or tensor.dtype for name, tensor in tensors.items()}

    def read(name: str) -> torch.Tensor:
        converted = tensors[name].to(dtypes[name])
        check_narrowed(name, tensors[name], converted, source=said)
        return converted

    if ENDINGS[target.suffix]:
        write_pt(target, {name: read(name) for name in tensors}, metadata)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        text = {"format": "pt", "sparda": json.dumps(metadata, sort_keys=True)}
        stream_tensors(target, sizes, dtypes, read, metadata=text)
    return Converted(
        path=target, tensors=len(tensors), parameters=sum(t.numel() for t in tensors.values()), layers=layers,
        dtypes=tuple(sorted({str(d).removeprefix("torch.") for d in dtypes.values()})), zeros_added=missing_last,
        metadata=metadata,
    )  # fmt: skip


def _lead(metadata: dict[str, Any], said: str) -> int:
    lead = metadata.get("lead", 1)
    if isinstance(lead, bool) or not isinstance(lead, int) or not 1 <= lead < MOST_LAYERS:
        raise WeightsError(f"{said}: its metadata has lead={lead!r}, must be an integer >= 1; {HINT}")
    return lead


def _layers(held: int, lead: int, metadata: dict[str, Any], shape: ModelShape | None, said: str) -> int | None:
    """Layers of the base model: as `shape` has, as the file says, or as the release's format implies."""
    known = shape.layers if shape is not None else metadata.get("layers", held if "release" in metadata else None)
    if known is None:
        return None
    if isinstance(known, bool) or not isinstance(known, int) or not known - lead <= held <= known:
        raise ConfigError(f"{said} has {held} projections, must have {known} or {lead} less for layers={known!r}")
    return known
