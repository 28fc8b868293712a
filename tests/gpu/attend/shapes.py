"""Shapes whose attention is compiled to see what it asks of a multiprocessor."""

from __future__ import annotations

import attrs


@attrs.frozen
class Shape:
    """Rows of decode, and the heads of their model."""

    rows: int
    kv_heads: int
    group: int
    head_dim: int
    dtype: str = "bfloat16"


#: MiniCPM4.1-8B at many rows and at few, Llama-3-8B, SmolLM2-135M, wide heads, float32, large groups.
SHAPES = (
    Shape(40, 2, 16, 128), Shape(4, 2, 16, 128), Shape(40, 8, 4, 128), Shape(40, 3, 3, 64), Shape(40, 2, 4, 256),
    Shape(40, 2, 16, 128, "float32"), Shape(40, 2, 32, 128),
)  # fmt: skip
