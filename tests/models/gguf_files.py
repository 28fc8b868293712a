"""Writes a tiny GGUF or a tiny Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from sparda_core.models.tiny import random_weights
from sparda_core.models.weights import EMBED, layer_key
from sparda_core.shapes import ModelShape

SMALL = ModelShape(
    name="small", layers=2, hidden=32, ffn=64, q_heads=4, kv_heads=2, head_dim=8, vocab=300, context=1024,
    tied_embeddings=True,
)  # fmt: skip

GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + D/2 of every head become neighbours, one row at a time."""
    out = np.full_like(weight, np.nan)
    width = weight.shape[0] // heads
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = weight[head * width + i]
            out[head * width + 2 * i + 1] = weight[head * width + i + width // 2]
    return out


def byte_pieces() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_gguf(
    path: Path, *, arch: str = "llama", leave_out: str = "", split: str = "smollm"
) -> dict[str, torch.Tensor]:
    weights = random_weights(SMALL, seed=5, dtype=torch.float32)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("small")
    writer.add_block_count(SMALL.layers)
    writer.add_embedding_length(SMALL.hidden)
    writer.add_feed_forward_length(SMALL.ffn)
    writer.add_head_count(SMALL.q_heads)
    writer.add_head_count_kv(SMALL.kv_heads)
    writer.add_context_length(SMALL.context)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    pieces = byte_pieces()
    pieces += ["12", "th"] + [f"<{i}>" for i in range(SMALL.vocab - len(pieces) - 2)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(pieces)
    writer.add_token_types([3 if p.startswith("<") and len(p) > 1 else 1 for p in pieces])
    writer.add_token_merges(["1 2", "t h"])
    writer.add_eos_token_id(SMALL.vocab - 1)
    for name, tensor in weights.items():
        if name == leave_out:
            continue
        values, gguf_name = tensor.numpy(), {EMBED: "token_embd.weight"}.get(name, "output_norm.weight")
        for layer in range(SMALL.layers):
            for part, short in GGUF_PARTS.items():
                if name == layer_key(layer, part):
                    gguf_name = f"blk.{layer}.{short}.weight"
                    heads = {"attn_q": SMALL.q_heads, "attn_k": SMALL.kv_heads}.get(short)
                    values = values if heads is None else interleaved(values, heads)
        writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def write_directory(path: Path, weights: dict[str, torch.Tensor], *, shards: int = 1, **changes: object) -> None:
    path.mkdir(exist_ok=True)
    config = {
        "model_type": "llama", "hidden_size": SMALL.hidden, "intermediate_size": SMALL.ffn,
        "num_hidden_layers": SMALL.layers, "num_attention_heads": SMALL.q_heads,
        "num_key_value_heads": SMALL.kv_heads, "head_dim": SMALL.head_dim, "vocab_size": SMALL.vocab,
        "max_position_embeddings": SMALL.context, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
        "tie_word_embeddings": True, "eos_token_id": [7, 9],
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config | changes))
    if shards == 1:
        save_file(weights, path / "model.safetensors")
        return
    place = {name: f"part-{i % shards}.safetensors" for i, name in enumerate(weights)}
    for file in set(place.values()):
        save_file({n: w for n, w in weights.items() if place[n] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
