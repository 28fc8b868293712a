"""What no runtime can beat: bytes that must move, over the rate at which they can. Torch-free."""

from __future__ import annotations

import attrs

from sparda_core.bench.decode.cell import Cell
from sparda_core.footprint import BIAS_BYTES
from sparda_core.shapes import BlockSpec, ModelShape

#: Measured on an H200: device memory as a copy sees it, and what gather kernels read of pinned memory.
HBM_BYTES_PER_S, LINK_BYTES_PER_S = 4.2e12, 51e9


@attrs.frozen(kw_only=True)
class Bytes:
    """Bytes of one decode step that must cross device memory.

    weights  every matrix but the embedding, once
    blocks   K and V of the attended blocks, and the biases of their tokens where the model has them
    entries  compressed keys of the whole context, and means of its biases; none where nothing is scored against them
    """

    weights: float
    blocks: float
    entries: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.blocks + self.entries

    @property
    def floor_s(self) -> float:
        """Seconds, with nothing but these bytes to move."""
        return self.total / HBM_BYTES_PER_S


def step_bytes(cell: Cell, shape: ModelShape, spec: BlockSpec, *, value_bytes: float = 2.0) -> Bytes:
    """Least bytes of device memory of one step of a cell, at its first step's length."""
    rows = cell.batch * shape.layers * shape.kv_heads
    every = spec.block_count(cell.context)
    attended = every if cell.selector == "dense" else min(spec.budget, every)
    block_bytes = 2 * spec.block * shape.head_dim * value_bytes
    scored = 0 if cell.selector == "dense" else spec.entry_count(cell.context)
    forecast = shape.layers * shape.forecast_weights if cell.selector in ("forecast", "nosa-forecast") else 0
    means = scored * BIAS_BYTES if cell.selector in ("nosa", "nosa-forecast") else 0
    biases = attended * spec.block * BIAS_BYTES if shape.token_bias else 0
    weights = shape.layers * shape.layer_weights + shape.vocab * shape.hidden + forecast
    return Bytes(
        weights=weights * value_bytes, blocks=rows * (attended * block_bytes + biases),
        entries=rows * (scored * shape.head_dim * value_bytes + means),
    )  # fmt: skip


def selection_floor_s(cell: Cell, shape: ModelShape, spec: BlockSpec, *, value_bytes: float = 2.0) -> float:
    """Floor of one layer's selection: its entries once; with query-driven scoring the logits too, written and read."""
    entries = cell.batch * spec.entry_count(cell.context)
    moved = entries * shape.kv_heads * shape.head_dim * value_bytes
    if cell.selector in ("query", "nosa"):
        moved += 2 * entries * shape.q_heads * 4.0
    return moved / HBM_BYTES_PER_S


def kind_floors_s(cell: Cell, shape: ModelShape, spec: BlockSpec, *, value_bytes: float = 2.0) -> dict[str, float]:
    """Floors of a whole step by kind of operation; top-k and diff have next to no bytes to move, and no floor."""
    least = step_bytes(cell, shape, spec, value_bytes=value_bytes)
    query = shape.hidden * shape.q_heads * shape.head_dim
    mlp, head = 3 * shape.hidden * shape.ffn * shape.layers, shape.vocab * shape.hidden
    matrices = least.weights / value_bytes - head - mlp - query * shape.layers
    scored = shape.layers * selection_floor_s(cell, shape, spec, value_bytes=value_bytes)
    moved = {"project": matrices, "output": query * shape.layers, "mlp": mlp, "head": head}
    floors = {kind: count * value_bytes / HBM_BYTES_PER_S for kind, count in moved.items()}
    return {**floors, "score": scored if least.entries else 0.0, "attend": least.blocks / HBM_BYTES_PER_S}


def link_floor_s(moved_bytes: float) -> float:
    """Floor of a step's transfers."""
    return moved_bytes / LINK_BYTES_PER_S
