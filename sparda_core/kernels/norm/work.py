"""Work of an RMSNorm."""

from __future__ import annotations

from sparda_core.work import Work, WorkContext


def norm_work(tokens: int, context: WorkContext) -> Work:
    """Rows and the weight read, rows written; square, sum, scale, weigh. One thread block a row."""
    values = tokens * context.shape.hidden
    weight = context.shape.hidden * context.weight_bytes
    return Work(flops=4.0 * values, hbm_bytes=2 * values * context.activation_bytes + weight, ctas=tokens)
