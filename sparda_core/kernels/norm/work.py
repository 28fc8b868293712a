"""Work of an RMSNorm."""

from __future__ import annotations

from sparda_core.work import Work, WorkContext

#: Query and key heads that one program of `norm_heads` takes.
HEADS = 8


def norm_work(tokens: int, context: WorkContext) -> Work:
    """Rows and the weight read, rows written; square, sum, scale, weigh. One thread block a row."""
    values = tokens * context.shape.hidden
    weight = context.shape.hidden * context.weight_bytes
    return Work(flops=4.0 * values, hbm_bytes=2 * values * context.activation_bytes + weight, ctas=tokens)


def norm_heads_work(tokens: int, context: WorkContext, *, keys: bool = True) -> Work:
    """Query heads and, with `keys`, key heads read and written in place, a weight each."""
    shape = context.shape
    heads = shape.q_heads + (shape.kv_heads if keys else 0)
    values, weight = tokens * heads * shape.head_dim, heads * shape.head_dim * context.weight_bytes
    return Work(
        flops=4.0 * values, hbm_bytes=2 * values * context.activation_bytes + weight, ctas=tokens * -(-heads // HEADS)
    )
