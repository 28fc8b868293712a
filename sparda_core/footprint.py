"""Bytes of what decoding keeps, by what it is: for predictions and for a session's plan alike. Torch-free.

Widths are bytes per value. `lengths` are tokens by row, or what a row is to have room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparda_core.shapes import BlockSpec, ModelShape

#: Blocks of one page, of one layer, row and KV head: 512 KiB in bf16 at block 64 and head dim 128. A row wastes half
#: a page per layer and KV head, and a fork copies one at its first write; a page costs four bytes of table.
PAGE_BLOCKS = 16
#: A block whose host copy is narrower than the device's has one float32 scale for its keys and one for its values.
SCALE_BYTES = 8
#: A token's bias is float32: it is added to logits, and takes a byte where K and V take 128 (bf16, head dim 128).
BIAS_BYTES = 4
#: Rotary tables are float32 whatever the model's dtype.
ROTARY_BYTES = 4


def weight_bytes(shape: ModelShape, *, forecast: bool, width: float) -> float:
    """All projections and embeddings; with a Forecast one projection for every layer, whatever its lead."""
    forecasts = shape.layers * shape.forecast_weights if forecast else 0
    return (shape.weights + forecasts) * width


def small_weight_bytes(shape: ModelShape, *, forecast: bool, width: float) -> float:
    """Norms, what makes the token bias, and biases and norms of heads where the model has them.

    Every row of a layer's one product has a bias, a Forecast's as well; every head has a copy of its norm's weight.
    """
    heads = shape.q_heads + 2 * shape.kv_heads if shape.qkv_bias else 0
    heads += shape.kv_heads if shape.qkv_bias and forecast else 0
    heads += shape.q_heads + shape.kv_heads if shape.qk_norm else 0
    bias = shape.kv_heads * (1 + shape.kv_heads * shape.head_dim) if shape.token_bias else 0
    return (shape.layers * (2 * shape.hidden + heads * shape.head_dim + bias) + shape.hidden) * width


def grown(rows: int, need: int) -> int:
    """Rows of a table that had `rows`, once it holds `need`: it at least doubles, so that growth stays cheap."""
    return rows if need <= rows else max(need, 2 * rows)


def rotary_bytes(shape: ModelShape, tokens: int) -> int:
    """Cosines and sines of a decoder on a device: as long as the stated context, longer where rows are."""
    return 2 * grown(shape.context, tokens) * shape.head_dim * ROTARY_BYTES


def block_bytes(shape: ModelShape, spec: BlockSpec, width: float) -> float:
    """K and V of one block of one KV head."""
    return 2 * spec.block * shape.head_dim * width


def entry_bytes(shape: ModelShape, spec: BlockSpec, lengths: Sequence[int], width: float) -> float:
    """Entries of every layer."""
    return sum(map(spec.entry_count, lengths)) * shape.layers * shape.kv_heads * shape.head_dim * width


def bias_bytes(shape: ModelShape, spec: BlockSpec, lengths: Sequence[int]) -> int:
    """Token biases of every layer and the means that blocks are ranked by; none where the model has no bias."""
    values = sum(tokens + spec.entry_count(tokens) for tokens in lengths) if shape.token_bias else 0
    return values * shape.layers * shape.kv_heads * BIAS_BYTES


def kept_blocks(spec: BlockSpec, tokens: int, page_blocks: int = PAGE_BLOCKS) -> int:
    """Blocks of the pages that a row takes per layer and KV head."""
    return -(-spec.block_count(tokens) // page_blocks) * page_blocks


def store_blocks(
    shape: ModelShape, spec: BlockSpec, lengths: Sequence[int], layers: int, page_blocks: int = PAGE_BLOCKS
) -> int:
    """Blocks of the pages that rows take in `layers` layers, when no page is shared."""
    return layers * shape.kv_heads * sum(kept_blocks(spec, tokens, page_blocks) for tokens in lengths)


def slot_count(shape: ModelShape, rows: int, layers: int, slots: int) -> int:
    """Slots of all rows and KV heads of `layers` offloaded layers."""
    return layers * rows * shape.kv_heads * slots
