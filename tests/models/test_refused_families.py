"""What a checkpoint may have and our decoder has not is refused by name, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparda_core.errors import WeightsError
from sparda_core.models.families.registry import FAMILIES
from sparda_core.models.load import load_model
from sparda_core.models.safetensors_dir import read_constants
from sparda_core.models.tiny import random_weights
from sparda_core.models.weights import layer_key
from tests.models.gguf_files import SMALL, write_directory

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return random_weights(SMALL, seed=0, dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention_bias": True}, "attention_bias=True is not supported, must be False"),
        ({"mlp_bias": True}, "mlp_bias=True is not supported, must be False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, must be 'silu'"),
        ({"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window=True .*sliding window"),
        ({"sliding_window": 4096}, "sliding_window=4096 is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types=.*'full_attention' in every layer"),
        ({"rope_interleaved": True}, "rope_interleaved=True is not supported"),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, "attention in chunks is not implemented"),
        ({"num_experts": 8}, "num_experts=8 .*mixtures of experts"),
        ({"num_local_experts": 8}, "num_local_experts=8 .*mixtures of experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config=.*use the checkpoint in bfloat16"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, must be 1.0"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_type='su' is unknown; known: default, dynamic, linear"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_type='proportional' is unknown"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "is unknown"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}}, r"\['mrope_section'\] are not known"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_type='linear' lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, r"factor=0.5 must be >= 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e9}}, r"a context of \d+ tokens must be <= 16777216"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": "x"}}, "factor='x' is not supported, must be a finite"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "low_freq_factor=1.0 must be < high_freq_factor=1.0"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 1}}, "original=1 must be an integer >= 2"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "x"}}, "must be an integer"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": "no"}}, "truncate='no' .*true or false"),
        ({"rope_scaling": LONG | {"long_factor": [1.0] * 3}}, "long_factor has 3 numbers, must have 4"),
        ({"rope_scaling": LONG | {"short_factor": [0.0] * 4}}, "short_factor=.* a list of numbers > 0"),
        ({"max_position_embeddings": 2**25}, r"a context of 33554432 tokens must be <= 16777216"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>' is not supported"),
        ({"eos_token_id": 300}, r"eos_id=300 must be an integer in \[0, vocab=300\)"),
        ({"eos_token_id": [7, 300]}, r"end_ids=300 must be an integer in \[0, vocab=300\)"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes' is not supported, must be true or false"),
        ({"num_hidden_layers": None}, "config.json lacks 'num_hidden_layers'"),
        ({"head_dim": None, "hidden_size": 33, "num_attention_heads": 4}, "hidden_size=33 must be a multiple of"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, family: str, changes: dict[str, Any], said: str
) -> None:
    if family == "qwen3" and "hidden_size" in changes:
        pytest.skip("its heads have 128 values where it does not say")
    if family == "minicpm" and changes.get("rope_scaling", {}).get("rope_type") == "longrope":
        pytest.skip("test_minicpm.py has its own")
    write_directory(tmp_path / "m", {}, **({"model_type": family} | changes))
    with pytest.raises(WeightsError, match=said):
        read_constants(tmp_path / "m")


@pytest.mark.parametrize("kind", ["mistral", "qwen2_moe", "qwen3_moe", "gemma2", "smollm3", "minicpm3", "", 5])
def test_another_family_is_refused_with_the_known_ones(tmp_path: Path, kind: object) -> None:
    write_directory(tmp_path / "m", {}, model_type=kind)
    with pytest.raises(WeightsError, match=r"model_type=.* is unknown; .*known: .*llama.*qwen2, qwen3"):
        load_model(tmp_path / "m")


def test_a_qwen_that_does_not_say_its_kv_heads_is_refused(tmp_path: Path) -> None:
    for family in ("qwen2", "qwen3"):
        write_directory(tmp_path / "m", {}, model_type=family, num_key_value_heads=None)
        with pytest.raises(WeightsError, match="lacks 'num_key_value_heads'"):
            read_constants(tmp_path / "m")


def test_tensors_that_belong_to_no_part_are_named(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    bias = layer_key(1, "self_attn.q_proj", "bias")
    write_directory(tmp_path / "m", weights | {bias: torch.zeros(32), "model.layers.0.mlp.gate.weight": torch.ones(2)})
    with pytest.raises(WeightsError, match=rf"2 tensors are no part of this family \(.*{bias}"):
        load_model(tmp_path / "m")
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    write_directory(tmp_path / "m", weights | buffers)
    assert load_model(tmp_path / "m").shape.layers == 2


def test_biases_and_norms_of_a_family_must_be_there(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    for family, missing in (("qwen2", r"6 tensors are missing \(.*q_proj\.bias"), ("qwen3", r"4 .*q_norm\.weight")):
        write_directory(tmp_path / "m", weights, model_type=family)
        with pytest.raises(WeightsError, match=missing):
            load_model(tmp_path / "m")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    write_directory(tmp_path / "m", weights, shards=2)
    first = next(iter(weights))
    for file in ("part-0.safetensors", "part-1.safetensors"):
        save_file({first: weights[first]}, tmp_path / "m" / file)
    with pytest.raises(WeightsError, match=rf"tensor {first} is in two files"):
        load_model(tmp_path / "m")


def test_narrow_numbers_without_their_scales_are_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    name = layer_key(0, "mlp.up_proj")
    write_directory(tmp_path / "m", weights | {name: weights[name].to(torch.float8_e4m3fn)})
    with pytest.raises(WeightsError, match=r"up_proj\.weight is torch\.float8_e4m3fn"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": 999}'])
def test_generation_settings_that_are_wrong_are_refused(
    tmp_path: Path, weights: dict[str, torch.Tensor], content: str
) -> None:
    write_directory(tmp_path / "m", weights)
    (tmp_path / "m" / "generation_config.json").write_text(content)
    with pytest.raises(WeightsError, match="generation_config"):
        load_model(tmp_path / "m")


HOSTILE: tuple[Any, ...] = (0, -1, 1.5, "64", [], [1], {}, {"a": 1}, True, 10**12, 10**400, float("inf"))


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_settings_of_every_family_load_or_are_a_weights_error(tmp_path: Path, family: str) -> None:
    keys = (
        "rope_scaling", "rope_theta", "scale_emb", "scale_depth", "dim_model_base", "sparse_config", "head_dim",
        "sliding_window", "layer_types", "bos_token_id", "max_position_embeddings", "original_max_position_embeddings",
    )  # fmt: skip
    inner = ("factor", "rope_type", "original_max_position_embeddings", "beta_fast", "attention_factor", "mscale")
    sparse = ("kernel_size", "kernel_stride", "init_blocks", "block_size", "window_size", "topk", "use_nope")
    yarn = {"rope_type": "yarn", "factor": 2.0}
    changes = [{key: value} for key in keys for value in HOSTILE]
    changes += [{"rope_scaling": yarn | {key: value}} for key in inner for value in HOSTILE]
    changes += [{"sparse_config": {key: value}} for key in sparse for value in HOSTILE]
    refused = 0
    for change in changes:
        write_directory(tmp_path / "m", {}, **({"model_type": family} | change))
        try:
            read_constants(tmp_path / "m")
        except WeightsError:
            refused += 1
    assert refused > 60, "the check must be able to fail"
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == family
