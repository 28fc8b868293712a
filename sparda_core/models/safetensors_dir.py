"""Read a directory as Hugging Face tools write it: config.json and one or more safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.files import parse_json
from sparda_core.models.config import DecoderConfig
from sparda_core.models.files import read_tensors
from sparda_core.models.weights import check_layers, check_shapes, expected_shapes
from sparda_core.shapes import ModelShape

_HINT = "use a complete Llama checkpoint"


def read_directory(path: Path) -> tuple[DecoderConfig, dict[str, torch.Tensor]]:
    """Constants and tensors, in the dtype they are stored in, by checkpoint name.

    raises  WeightsError if a file is absent or unreadable, the model is not a plain Llama
            (biases, scaled rotary positions, another activation) or tensors are missing.
    """
    source = f"weights={str(path)!r}"
    config = _config(_json(path / "config.json"), source, name=path.name)
    found: dict[str, torch.Tensor] = {}
    for file in _files(path):
        found |= read_tensors(file)[0]
    check_layers(config.shape, len(found), source=source, hint=_HINT)
    expected = expected_shapes(config.shape)
    tensors = {name: tensor for name, tensor in found.items() if name in expected}
    check_shapes(tensors, expected, source=source, hint=_HINT)
    return config, tensors


def _json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{str(path)!r} cannot be read ({error}); {_HINT}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{str(path)!r} holds {type(content).__name__}, must be an object; {_HINT}")
    return content


def _files(path: Path) -> list[Path]:
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        raise WeightsError(f"{str(path)!r} has neither {whole.name} nor {index.name}; {_HINT}")
    parts = _json(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(name, str) and name for name in parts.values()):
        raise WeightsError(f"{str(index)!r} has no weight_map from tensors to files; {_HINT}")
    names = sorted(set(parts.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise WeightsError(f"{str(index)!r} names files outside its directory: {outside}; {_HINT}")
    return [path / name for name in names]


def _config(raw: dict[str, Any], source: str, *, name: str) -> DecoderConfig:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise WeightsError(f"{source}: rope_parameters={scaling!r} must be an object; {_HINT}")
    rope = {"rope_type": "default"} | scaling
    plain = {
        "model_type": (raw.get("model_type"), "llama"),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(raw.get("attention_bias", False)), False),
        "mlp_bias": (bool(raw.get("mlp_bias", False)), False),
        "rope_type": (rope["rope_type"], "default"),
    }
    for key, (got, want) in plain.items():
        if got != want:
            raise WeightsError(f"{source}: {key}={got!r} is not supported, must be {want!r}")
    try:
        shape = ModelShape(
            name=name,
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            ffn=raw["intermediate_size"],
            q_heads=raw["num_attention_heads"],
            kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            vocab=raw["vocab_size"],
            context=raw["max_position_embeddings"],
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )
        return DecoderConfig(
            shape=shape,
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta", 10000.0)),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            bos_id=_one(raw.get("bos_token_id")),
            eos_id=_one(raw.get("eos_token_id")),
            pad_id=_one(raw.get("pad_token_id")),
        )
    except KeyError as error:
        raise WeightsError(f"{source}: config.json lacks {error}; {_HINT}") from error
    except (ArithmeticError, ConfigError, TypeError, ValueError) as error:
        raise WeightsError(f"{source}: {error}") from error


def _one(value: int | list[int] | None) -> int | None:
    """Some configs list several end tokens; the first is the model's own."""
    if isinstance(value, list):
        value = value[0] if value else None
    return value if value is not None and value >= 0 else None
