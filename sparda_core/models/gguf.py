"""Read a Llama-type GGUF: constants, tensors by checkpoint name, and the key-value section.

Quantised tensors are expanded to float32 with the `gguf` library's own code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.gguf_bounds import check_bounds
from sparda_core.models.weights import EMBED, FINAL_NORM, HEAD, check_layers, check_shapes, expected_shapes, layer_key
from sparda_core.shapes import ModelShape

_TOP = {"token_embd.weight": EMBED, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What the gguf library raises on a damaged file; the last one for quantisations it cannot dequantise.
_UNREADABLE = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, NotImplementedError)
_HINT = "download the file again"
_Kind = TypeVar("_Kind")
_log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class GgufModel:
    """What a GGUF holds: constants, float32 tensors by checkpoint name, key-value section."""

    config: DecoderConfig
    tensors: Mapping[str, torch.Tensor]
    fields: Mapping[str, Any]


def read_gguf(path: Path) -> GgufModel:
    """Read `path` whole.

    raises  WeightsError if it cannot be read, is cut short, is not a plain Llama (another
            architecture, scaled rotary positions) or lacks tensors; every missing name is listed.
    """
    source = f"weights={str(path)!r}"
    try:
        check_bounds(path, source=source, hint=_HINT)
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except WeightsError:
        raise
    except _UNREADABLE as error:
        raise WeightsError(f"{source} is not a complete GGUF ({error!r}); {_HINT}") from error
    config = _config(fields, source, tied=not any(t.name == "output.weight" for t in reader.tensors))
    check_layers(config.shape, len(reader.tensors), source=source, hint=_HINT)
    claimed, held = sum(int(entry.n_bytes) for entry in reader.tensors), path.stat().st_size
    if claimed > held:  # one place in the file, named often: expanded, that has no bound
        raise WeightsError(f"{source}: its tensors take {claimed} bytes, the file {held}: they overlap; {_HINT}")
    tensors: dict[str, torch.Tensor] = {}
    for entry in reader.tensors:
        name = _checkpoint_name(entry.name)
        if name is None:
            _log.info("%s: tensor %s is not used", source, entry.name)
            continue
        try:
            values = dequantize(entry.data, entry.tensor_type)
        except _UNREADABLE as error:
            raise WeightsError(f"{source}: tensor {entry.name} cannot be read ({error!r}); {_HINT}") from error
        tensors[name] = _in_our_order(name, torch.from_numpy(np.array(values, dtype=np.float32)), config.shape)
    check_shapes(tensors, expected_shapes(config.shape), source=source, hint=_HINT)
    return GgufModel(config, tensors, fields)


def _config(fields: Mapping[str, Any], source: str, *, tied: bool) -> DecoderConfig:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise WeightsError(f"{source}: architecture={architecture!r} is not supported, must be 'llama'")
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise WeightsError(f"{source}: rope scaling {fields['llama.rope.scaling.type']!r} is not supported")

    def need(key: str, kind: type[_Kind]) -> _Kind:
        value = fields.get(key)
        if not isinstance(value, kind):
            raise WeightsError(f"{source}: field {key}={value!r} must be of type {kind.__name__}; {_HINT}")
        return value

    hidden, q_heads = need("llama.embedding_length", int), need("llama.attention.head_count", int)
    try:
        shape = ModelShape(
            name=str(fields.get("general.name", Path(source).stem)),
            layers=need("llama.block_count", int),
            hidden=hidden,
            ffn=need("llama.feed_forward_length", int),
            q_heads=q_heads,
            kv_heads=fields.get("llama.attention.head_count_kv", q_heads),
            head_dim=fields.get("llama.attention.key_length", hidden // q_heads),
            vocab=len(need("tokenizer.ggml.tokens", list)),
            context=need("llama.context_length", int),
            tied_embeddings=tied,
        )
        return DecoderConfig(
            shape=shape,
            rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
            norm_eps=float(need("llama.attention.layer_norm_rms_epsilon", float)),
            bos_id=fields.get("tokenizer.ggml.bos_token_id"),
            eos_id=fields.get("tokenizer.ggml.eos_token_id"),
            pad_id=fields.get("tokenizer.ggml.padding_token_id"),
        )
    except WeightsError:
        raise
    except (ArithmeticError, ConfigError, TypeError, ValueError) as error:
        raise WeightsError(f"{source}: {error}") from error


def _checkpoint_name(name: str) -> str | None:
    if name in _TOP:
        return _TOP[name]
    pieces = name.split(".")
    if len(pieces) == 4 and pieces[0] == "blk" and pieces[1].isdigit() and pieces[2] in _PARTS:
        return layer_key(int(pieces[1]), _PARTS[pieces[2]])
    return None


def _in_our_order(name: str, weight: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    heads = {"q_proj": shape.q_heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
    return weight if heads is None else unpermute(weight, heads)


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Query or key rows [heads * D, in] from GGUF order to rotate-half order.

    A GGUF of this architecture interleaves the two halves of each head (row 2i and 2i + 1 are
    rotated together); rotate-half pairs row i with row i + D/2.
    """
    if weight.ndim != 2:
        return weight  # as below
    rows, width = weight.shape
    if rows % (2 * heads):
        return weight  # the shape check names this tensor
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)
