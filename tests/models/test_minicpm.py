"""MiniCPM4 and 4.1 from a tiny checkpoint in their own format, computed again from the definition in plain float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparda_core.errors import WeightsError
from sparda_core.models.load import load_model
from sparda_core.models.tiny import random_weights
from sparda_core.shapes import BlockSpec, ModelShape
from tests.models.cached import decode_with_cache

SHAPE = ModelShape(
    name="m", layers=3, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=61, context=64
)
SHORT, LONG = [0.9977, 1.02, 1.3, 1.6], [0.9977, 2.5, 4.0, 7.0]
#: The keys of the published config.json, at tiny sizes.
CONFIG: dict[str, Any] = {
    "architectures": ["MiniCPMForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_minicpm.MiniCPMConfig",
        "AutoModel": "modeling_minicpm.MiniCPMModel",
        "AutoModelForCausalLM": "modeling_minicpm.MiniCPMForCausalLM",
    },
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "dim_model_base": 8,
    "eos_token_id": [2, 60], "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.1,
    "intermediate_size": 48, "max_position_embeddings": 64, "model_type": "minicpm", "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 2, "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "rope_type": "longrope", "long_factor": LONG, "short_factor": SHORT, "original_max_position_embeddings": 64,
    },
    "scale_depth": 1.4, "scale_emb": 12, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.56.1", "use_cache": True, "vocab_size": 61,
    "sparse_config": {
        "kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 64, "window_size": 2048, "topk": 64,
        "use_nope": False, "dense_len": 8192,
    },
}  # fmt: skip


def write(path: Path, **changes: Any) -> dict[str, torch.Tensor]:
    weights = random_weights(SHAPE, seed=2, dtype=torch.float32)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(weights, path / "model.safetensors")
    return weights


def logits_by_hand(weights: dict[str, torch.Tensor], ids: list[int], config: dict[str, Any]) -> torch.Tensor:
    """One row, token by token and head by head: [T, vocab]."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    hidden, heads, size, layers = 32, 4, 8, 3

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean() + 1e-6).sqrt() * weight

    def turned(head: torch.Tensor, position: int) -> torch.Tensor:
        rope = config["rope_scaling"]
        ratio = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        factors = rope["long_factor" if ratio > 1 else "short_factor"]
        magnitude = math.sqrt(1 + math.log(ratio) / math.log(rope["original_max_position_embeddings"]))
        out = torch.empty_like(head)
        for pair in range(size // 2):
            angle = position / factors[pair] / 10000 ** (2 * pair / size)
            a, b = head[pair], head[pair + size // 2]
            out[pair] = (a * math.cos(angle) - b * math.sin(angle)) * magnitude
            out[pair + size // 2] = (b * math.cos(angle) + a * math.sin(angle)) * magnitude
        return out

    branch = config["scale_depth"] / math.sqrt(layers)
    stream = [w["model.embed_tokens.weight"][i] * config["scale_emb"] for i in ids]
    for layer in range(layers):
        at = f"model.layers.{layer}."
        normed = [norm(x, w[at + "input_layernorm.weight"]) for x in stream]
        q, k, v = (
            [(w[at + f"self_attn.{name}_proj.weight"] @ x).view(-1, size) for x in normed] for name in ("q", "k", "v")
        )
        q = [torch.stack([turned(head, t) for head in one]) for t, one in enumerate(q)]
        k = [torch.stack([turned(head, t) for head in one]) for t, one in enumerate(k)]
        for t in range(len(ids)):
            out = torch.zeros(heads, size, dtype=torch.float64)
            for head in range(heads):
                share = torch.stack([q[t][head] @ k[s][head // 2] for s in range(t + 1)]).div(size**0.5).softmax(0)
                out[head] = torch.stack([share[s] * v[s][head // 2] for s in range(t + 1)]).sum(0)
            stream[t] = stream[t] + (w[at + "self_attn.o_proj.weight"] @ out.flatten()) * branch
        for t, x in enumerate(stream):
            inner = norm(x, w[at + "post_attention_layernorm.weight"])
            gate = w[at + "mlp.gate_proj.weight"] @ inner
            gated = gate * torch.sigmoid(gate) * (w[at + "mlp.up_proj.weight"] @ inner)
            stream[t] = x + (w[at + "mlp.down_proj.weight"] @ gated) * branch
    last = [norm(x, w["model.norm.weight"]) / (hidden / config["dim_model_base"]) for x in stream]
    return torch.stack([w["lm_head.weight"] @ x for x in last])


@pytest.mark.parametrize("context", [64, 256], ids=["short list", "long list"])
def test_logits_are_those_of_the_definition(tmp_path: Path, context: int) -> None:
    changes = {"max_position_embeddings": context}
    weights = write(tmp_path / "m", **changes)
    ids = [int(i) for i in torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(0))]
    want = logits_by_hand(weights, ids, CONFIG | changes)
    decoder = load_model(tmp_path / "m", dtype=torch.float64).decoder
    assert decoder.shape.context == context
    assert float(want.std()) > 0.1
    ids_BT = torch.tensor([ids])
    torch.testing.assert_close(decoder.dense_forward(ids_BT)[0], want, rtol=1e-9, atol=1e-9)
    cached = decode_with_cache(decoder, ids_BT, [30, 1, 1, 8])
    torch.testing.assert_close(cached[0], want, rtol=1e-9, atol=1e-9)


def test_the_two_lists_and_every_scaling_matter(tmp_path: Path) -> None:
    ids_BT = torch.arange(40)[None]
    write(tmp_path / "m")
    plain = load_model(tmp_path / "m").decoder.dense_forward(ids_BT)
    for change in ({"max_position_embeddings": 65}, {"scale_emb": 11}, {"scale_depth": 1.0}, {"dim_model_base": 9}):
        write(tmp_path / "m", **change)
        other = load_model(tmp_path / "m").decoder.dense_forward(ids_BT)
        assert float((other - plain).abs().max()) > 0.01, change


def test_the_sparse_config_becomes_the_published_blocks(tmp_path: Path) -> None:
    write(tmp_path / "m")
    config = load_model(tmp_path / "m").config
    spec = config.block_spec
    assert spec == BlockSpec(block=64, window=32, stride=16, sink=1, local=32, budget=96)
    assert (spec.forced, spec.free) == (34, 62)
    assert config.end_ids == (2, 60)
    write(tmp_path / "m", sparse_config=None)
    assert load_model(tmp_path / "m").config.block_spec is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sparse_config": {"use_nope": True}}, r"sparse_config\): use_nope=True is not supported"),
        ({"sparse_config": {"window_size": 100}}, "window_size=100 must be a multiple of block_size=64"),
        ({"sparse_config": {"topk": -40}}, r"budget=-8 must be an integer >= 1"),
        ({"scale_depth": 0}, "residual_scale=0"),
        ({"scale_emb": "many"}, "scale_emb='many' is not supported, must be a finite number"),
        ({"rope_scaling": CONFIG["rope_scaling"] | {"short_factor": [1.0]}}, "short_factor has 1 numbers, must have 4"),
        ({"rope_scaling": CONFIG["rope_scaling"] | {"long_factor": "x"}}, "long_factor='x' is not supported"),
        ({"max_position_embeddings": 32}, "original_max_position_embeddings=64 must be between 2 and"),
        ({"tie_word_embeddings": True}, r"tie_word_embeddings is true, but lm_head\.weight differs"),
        ({"num_experts": 8}, "mixtures of experts"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "must be default, linear, dynamic or longrope"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write(tmp_path / "m", **changes)
    with pytest.raises(WeightsError, match=said):
        load_model(tmp_path / "m")
