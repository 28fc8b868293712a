"""Names and shapes of a decoder's tensors, and the one check that all loaders share.

Names are those of Hugging Face's Llama checkpoints, so that a checkpoint needs no renaming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sparda_core.errors import WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.token_bias import bias_shapes
from sparda_core.shapes import ModelShape

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_key(layer: int, part: str, kind: str = "weight") -> str:
    """Give one tensor its full name: layer 3, part self_attn.q_proj -> model.layers.3.self_attn.q_proj.weight."""
    return f"model.layers.{layer}.{part}.{kind}"


def layer_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Part name -> shape [out, in] (norms: [hidden]), the same for every layer."""
    q_rows, kv_rows = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "input_layernorm": (shape.hidden,),
        "self_attn.q_proj": (q_rows, shape.hidden),
        "self_attn.k_proj": (kv_rows, shape.hidden),
        "self_attn.v_proj": (kv_rows, shape.hidden),
        "self_attn.o_proj": (shape.hidden, q_rows),
        "post_attention_layernorm": (shape.hidden,),
        "mlp.gate_proj": (shape.ffn, shape.hidden),
        "mlp.up_proj": (shape.ffn, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.ffn),
    }


def expected_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every tensor a decoder of this shape needs; the head only where it is not tied to the embedding."""
    table = (shape.vocab, shape.hidden)
    names: dict[str, tuple[int, ...]] = {EMBED: table, FINAL_NORM: (shape.hidden,)}
    if not shape.tied_embeddings:
        names[HEAD] = table
    for layer in range(shape.layers):
        names |= {layer_key(layer, part): size for part, size in layer_shapes(shape).items()}
    return names | bias_shapes(shape)


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """`expected_shapes`, and what a family has beyond a plain Llama: biases [rows], norms of heads [D]."""
    shape, names = config.shape, expected_shapes(config.shape)
    rows = {"q_proj": shape.q_heads * shape.head_dim, "k_proj": shape.kv_heads * shape.head_dim}
    rows["v_proj"] = rows["k_proj"]
    for layer in range(shape.layers):
        if shape.qkv_bias:
            names |= {layer_key(layer, f"self_attn.{part}", "bias"): (size,) for part, size in rows.items()}
        if shape.qk_norm:
            names |= {layer_key(layer, f"self_attn.{part}"): (shape.head_dim,) for part in ("q_norm", "k_norm")}
    return names


def sizes_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, tuple[int, ...]]:
    """Shape of every tensor, without reading one where the mapping knows them (its `sizes`)."""
    known = getattr(tensors, "sizes", None)
    return known if known is not None else {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_shapes(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], *, source: str, hint: str
) -> None:
    """Raise WeightsError listing every name that is missing or has another shape; extra names are fine."""
    sizes = sizes_of(tensors)
    missing = [name for name in expected if name not in sizes]
    if missing:
        raise WeightsError(f"{source}: {len(missing)} tensors are missing ({some(missing)}); {hint}")
    wrong = [
        f"{name} is {tuple(sizes[name])}, must be {size}"
        for name, size in expected.items()
        if tuple(sizes[name]) != tuple(size)
    ]
    if wrong:
        raise WeightsError(f"{source}: {len(wrong)} tensors have the wrong shape ({some(wrong)}); {hint}")


def check_layers(shape: ModelShape, tensors: int, *, source: str, hint: str) -> None:
    """Raise WeightsError where a file of so few tensors cannot hold so many layers, before any list of them is made."""
    if shape.layers > tensors:
        raise WeightsError(f"{source}: layers={shape.layers}, but there are only {tensors} tensors; {hint}")


#: What a tensor of a checkpoint may be stored as: narrower ones mean nothing without scales.
STORED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_narrowed(name: str, stored: torch.Tensor, converted: torch.Tensor, *, source: str) -> None:
    """Raise WeightsError where finite numbers became infinite in a dtype with smaller exponents."""
    if converted.dtype == stored.dtype or torch.finfo(converted.dtype).max >= torch.finfo(stored.dtype).max:
        return
    if not all(bool(x.isfinite()) for x in converted.float().aminmax()):
        raise WeightsError(f"{source}: {name} has numbers too large for {converted.dtype}; use bfloat16 or float32")


def check_values(tensors: Mapping[str, torch.Tensor], *, source: str, hint: str) -> None:
    """Raise WeightsError listing every tensor that holds no floats of 16 bits or more, or NaN or infinity."""
    wrong = [f"{name} is {t.dtype}" for name, t in tensors.items() if t.dtype not in STORED]
    if wrong:
        raise WeightsError(f"{source}: {len(wrong)} tensors hold no floating-point numbers ({some(wrong)}); {hint}")
    # The extremes of a tensor are NaN where it holds one: a single pass, without a copy.
    broken = [name for name, t in tensors.items() if not all(bool(x.isfinite()) for x in t.float().aminmax())]
    if broken:
        raise WeightsError(f"{source}: {len(broken)} tensors hold NaN or infinity ({some(broken)}); {hint}")


def some(items: Sequence[str], limit: int = 8) -> str:
    """The first few of a list of names, and how many more there are."""
    rest = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {rest} more" if rest > 0 else "")
