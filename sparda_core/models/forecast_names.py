"""Forecast tensors by any name that training code gives them, under one name each.

The published release calls them `model.layers.{l}.self_attn.q_future_proj.weight` (layer l's forecast of l + 1) and
`model.layers.0.self_attn.q_curr_proj.weight`; a longer lead has more of the latter. Wrappers of modules and nested
dictionaries add to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sparda_core.errors import WeightsError
from sparda_core.models.weights import some

#: What wrapping a module puts into the names of its tensors.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_NAME = re.compile(r"(?:.+\.)?layers\.(\d{1,6})\.(?:self_attn\.)?(q_future_proj|q_curr_proj)\.weight")
#: Dictionaries within dictionaries are looked into so far.
_DEPTH = 4


def own_key(layer: int) -> str:
    """Name of the projection by which `layer` selects for itself."""
    return f"model.layers.{layer}.self_attn.q_curr_proj.weight"


def following_key(layer: int) -> str:
    """Name of the projection, applied in `layer`, that forecasts layer + lead."""
    return f"model.layers.{layer}.self_attn.q_future_proj.weight"


OWN_KEY = own_key(0)


def known_name(name: str) -> str | None:
    """The one name of a Forecast tensor; None for what is none.

    raises  WeightsError for a name that speaks of a Forecast projection in a form that is not known
    """
    if "q_future_proj" not in name and "q_curr_proj" not in name:
        return None
    plain = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    found = _NAME.fullmatch(plain)
    if found is None:
        raise WeightsError(
            f"tensor {name!r} looks like a Forecast projection and is none that is known: must end in "
            "layers.N.self_attn.q_future_proj.weight, or layers.N.self_attn.q_curr_proj.weight"
        )
    return (own_key if found[2] == "q_curr_proj" else following_key)(int(found[1]))


def find_forecast(content: Mapping[Any, Any], *, source: str) -> dict[str, torch.Tensor]:
    """All Forecast tensors of a dictionary, and of the dictionaries in it, by their one name.

    raises  WeightsError for a name that is not understood, or one that two different tensors share
    """
    found: dict[str, torch.Tensor] = {}
    came_as: dict[str, str] = {}
    for said, tensor in _tensors(content, _DEPTH):
        try:
            name = known_name(said)
        except WeightsError as error:
            raise WeightsError(f"{source}: {error}") from error
        if name is None:
            continue
        if name in found and not (found[name].shape == tensor.shape and torch.equal(found[name], tensor)):
            raise WeightsError(f"{source}: {came_as[name]!r} and {said!r} both are {name}, and differ; keep one")
        found[name], came_as[name] = tensor, said
    return found


def check_set(tensors: Mapping[str, torch.Tensor], lead: int, *, source: str, hint: str) -> int:
    """Raise WeightsError unless these are own projections of the first `lead` layers and those of layers 0 to n - 1,
    all of one shape; returns n.
    """
    owned = {own_key(layer) for layer in range(lead)}
    layers = {int(name.split(".")[2]) for name in tensors if "q_future_proj" in name}
    want = [*sorted(owned), *(following_key(layer) for layer in range(max(layers, default=0) + 1))]
    missing = [name for name in want if name not in tensors]
    if missing:
        raise WeightsError(f"{source}: {len(missing)} tensors are missing ({some(missing)}); {hint}")
    more = [name for name in tensors if "q_curr_proj" in name and name not in owned]
    if more:
        raise WeightsError(f"{source}: lead={lead} has no use for {some(more)}; {hint}")
    size = tuple(tensors[OWN_KEY].shape)
    wrong = [f"{name} is {tuple(t.shape)}" for name, t in tensors.items() if tuple(t.shape) != size or t.dim() != 2]
    if wrong:
        raise WeightsError(f"{source}: all must be matrices of the shape of {OWN_KEY}, {size}: {some(wrong)}; {hint}")
    return len(layers)


def _tensors(content: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in content.items():
        if isinstance(value, torch.Tensor) and isinstance(name, str):
            yield name, value
        elif isinstance(value, Mapping) and depth > 0:
            yield from _tensors(value, depth - 1)
