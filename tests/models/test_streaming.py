"""Loading and converting hold a layer twice at most, never the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.convert_model import convert_model
from sparda_core.models.forecast_weights import save_forecast
from sparda_core.models.load import load_model
from sparda_core.models.safetensors_dir import read_directory
from sparda_core.models.stream import stream_tensors
from sparda_core.models.tiny import random_forecast, random_weights
from sparda_core.models.weights import layer_shapes
from sparda_core.shapes import ModelShape
from tests.models.gguf_files import SMALL, write_directory, write_gguf
from tests.models.memory import LiveBytes

DEEP = ModelShape(
    name="deep", layers=12, hidden=64, ffn=128, q_heads=4, kv_heads=2, head_dim=16, vocab=300, context=128,
    tied_embeddings=True,
)  # fmt: skip
SETTINGS = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "head_dim": 16, "vocab_size": 300,
    "max_position_embeddings": 128, "eos_token_id": 7,
}  # fmt: skip


def layer_values() -> int:
    return sum(torch.Size(size).numel() for size in layer_shapes(DEEP).values())


def write_deep(path: Path, dtype: torch.dtype) -> int:
    """Values of the whole model."""
    weights = random_weights(DEEP, seed=0, dtype=dtype)
    write_directory(path, weights, shards=3, **SETTINGS)
    return sum(w.numel() for w in weights.values())


def test_the_count_sees_what_is_held_twice() -> None:
    with LiveBytes() as live:
        one = torch.ones(1000)
        two = one.double().float()
        assert live.now == 8000
        del one, two
        assert (live.now, live.peak) == (0, 4000 + 8000 + 4000)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("forecast", [False, True])
def test_a_model_takes_its_own_memory_and_a_layers_while_it_is_loaded(
    tmp_path: Path, stored: torch.dtype, *, forecast: bool
) -> None:
    values = write_deep(tmp_path / "m", stored)
    file = None
    if forecast:
        file = tmp_path / "f.safetensors"
        save_forecast(file, random_forecast(DEEP, seed=1, dtype=torch.float32), dtype=torch.float32)
    extra = DEEP.layers * DEEP.forecast_weights if forecast else 0
    tables = 4 * 2 * DEEP.context * DEEP.head_dim * 16  # the rotary table, with what it is made of
    with LiveBytes() as live:
        model = load_model(tmp_path / "m", dtype=torch.float32, forecast=file)
    assert model.shape.layers == DEEP.layers
    assert live.now <= 4 * (values + extra) + tables
    assert live.peak <= 4 * (values + extra + 3 * layer_values()) + tables
    assert 4 * (values + extra + 3 * layer_values()) < 2 * 4 * values, "the bound must exclude two copies"


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_a_directory_is_converted_a_tensor_at_a_time(tmp_path: Path, dtype: torch.dtype | None) -> None:
    values = write_deep(tmp_path / "m", torch.bfloat16)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"not copied")
    told: list[tuple[int, int]] = []
    with LiveBytes() as live:
        made = convert_model(
            tmp_path / "m", tmp_path / "out", dtype=dtype, shard_bytes=100_000,
            on_tensor=lambda _, done, total: told.append((done, total)),
        )  # fmt: skip
    assert live.peak < 4 * values / 3
    assert told == [(i + 1, made.tensors) for i in range(made.tensors)]
    assert len(made.files) > 3
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(made.files)
    assert all((tmp_path / "out" / file).stat().st_size < 110_000 for file in made.files)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["dtype"] == settings["torch_dtype"] == str(dtype or torch.bfloat16).removeprefix("torch.")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        *made.files, "config.json", "model.safetensors.index.json", "tokenizer.json",
    }  # fmt: skip
    _, before = read_directory(tmp_path / "m")
    _, after = read_directory(tmp_path / "out")
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor.to(dtype or tensor.dtype)), name


def test_a_gguf_becomes_a_directory_with_the_same_logits_and_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    convert_model(tmp_path / "small.gguf", tmp_path / "out")
    ids_BT = torch.arange(9)[None]
    one, two = load_model(tmp_path / "small.gguf"), load_model(tmp_path / "out")
    assert torch.equal(one.decoder.dense_forward(ids_BT), two.decoder.dense_forward(ids_BT))
    assert two.config.rope_theta == one.config.rope_theta
    assert one.tokenizer is not None
    assert two.tokenizer is not None
    assert two.tokenizer.encode("on the 12th <3>") == one.tokenizer.encode("on the 12th <3>")


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    weights = random_weights(SMALL, seed=0, dtype=torch.float32)
    weights["model.norm.weight"][3] = 1e9
    write_directory(tmp_path / "m", weights)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has numbers too large for torch\.float16"):
        convert_model(tmp_path / "m", tmp_path / "out", dtype=torch.float16)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists; name a folder that does not"):
        convert_model(tmp_path / "m", tmp_path / "out")


def test_a_streamed_file_is_read_by_the_formats_own_library(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).to(torch.bfloat16), "c": torch.zeros(0, 2)}
    sizes = {name: tuple(t.shape) for name, t in tensors.items()}
    dtypes = {name: t.dtype for name, t in tensors.items()}
    stream_tensors(tmp_path / "x.safetensors", sizes, dtypes, tensors.__getitem__, metadata={"k": "v"})
    back = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(ValueError, match="a is"):
        stream_tensors(tmp_path / "y.safetensors", sizes | {"a": (1,)}, dtypes, tensors.__getitem__, metadata={})
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
