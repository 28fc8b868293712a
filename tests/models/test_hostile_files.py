"""Whatever a model's files hold, loading them ends soon, and with one error of ours."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.forecast_weights import load_forecast, save_forecast
from sparda_core.models.load import load_model
from sparda_core.models.sampling import Sampler
from sparda_core.models.tiny import random_forecast, random_weights
from sparda_core.models.weights import FINAL_NORM
from tests.models.gguf_files import SMALL, write_directory, write_gguf

HOSTILE: tuple[Any, ...] = (
    0, -1, 1.5, "64", [], [1], {}, {"a": 1}, True, 10**12, 10**400, float("inf"), float("nan"),
)  # fmt: skip


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return random_weights(SMALL, seed=0, dtype=torch.float32)


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
        "rope_parameters", "eos_token_id", "tie_word_embeddings",
    ],
)  # fmt: skip
def test_a_hostile_setting_loads_or_is_a_weights_error(
    tmp_path: Path, weights: dict[str, torch.Tensor], key: str
) -> None:
    refused = 0
    for value in HOSTILE:
        write_directory(tmp_path / "m", weights, **{key: value})
        try:
            load_model(tmp_path / "m")
        except WeightsError:
            refused += 1
    assert refused >= (0 if key == "tie_word_embeddings" else 4), "the check must be able to fail"


def test_more_layers_than_tensors_are_refused_before_they_are_listed(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    write_directory(tmp_path / "m", weights, num_hidden_layers=10**9)
    with pytest.raises(WeightsError, match=r"layers=1000000000, but there are only \d+ tensors"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "null", "7", ""])
def test_a_config_that_is_no_object_is_a_weights_error(
    tmp_path: Path, weights: dict[str, torch.Tensor], text: str
) -> None:
    write_directory(tmp_path / "m", weights)
    (tmp_path / "m" / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"config\.json"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("name", [5, None, ["x"], "", "..", "../m/part-0.safetensors"])
def test_an_index_names_files_of_its_own_folder_or_is_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], name: object
) -> None:
    write_directory(tmp_path / "m", weights, shards=2)
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.to(torch.int64), r"hold no floating-point numbers \(model\.norm\.weight is torch\.int64"),
        (lambda w: w.new_full(w.shape, float("nan")), r"hold NaN or infinity \(model\.norm\.weight"),
        (lambda w: w.new_full(w.shape, float("-inf")), r"hold NaN or infinity \(model\.norm\.weight"),
    ],
)
def test_weights_that_are_no_finite_numbers_are_named(
    tmp_path: Path, weights: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor], says: str
) -> None:
    write_directory(tmp_path / "m", weights | {FINAL_NORM: change(weights[FINAL_NORM])})
    with pytest.raises(WeightsError, match=says):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("metadata", ["[" * 100_000, "null", "5", '"a"'])
def test_forecast_metadata_is_an_object_or_refused(tmp_path: Path, metadata: str) -> None:
    path = tmp_path / "f.safetensors"
    save_forecast(path, random_forecast(SMALL, seed=0, dtype=torch.float32))
    tensors = {name: torch.from_numpy(value) for name, value in _tensors(path).items()}
    save_file(tensors, path, metadata={"sparda": metadata})
    with pytest.raises(WeightsError, match="metadata"):
        load_forecast(path, SMALL)


def _tensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(path))


@pytest.mark.parametrize("field", ["tokenizer.ggml.token_type", "tokenizer.ggml.merges"])
@pytest.mark.parametrize("count", [2**62, 2**33])
def test_a_gguf_whose_list_claims_more_than_the_file_holds_is_refused_at_once(
    tmp_path: Path, field: str, count: int
) -> None:
    path = tmp_path / "small.gguf"
    write_gguf(path)
    content = bytearray(path.read_bytes())
    at = content.index(field.encode()) + len(field) + 8  # after the key: the types of value and items
    content[at : at + 8] = struct.pack("<Q", count)
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="is not a complete GGUF"):
        load_model(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_overflowed_are_an_error_and_no_token(value: float, temperature: float) -> None:
    with pytest.raises(WeightsError, match="largest logit"):
        Sampler(temperature=temperature).choose(torch.tensor([0.0, value]))


def test_a_temperature_next_to_nothing_takes_the_likeliest_token() -> None:
    assert Sampler(temperature=1e-320).choose(torch.tensor([0.0, 3.0, 2.0])) == 1


def test_a_seed_that_no_generator_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed="):
        Sampler(seed=2**63)
