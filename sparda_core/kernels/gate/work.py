"""Work of the gate of a feed-forward."""

from __future__ import annotations

from sparda_core.work import Work, WorkContext

#: Values that one thread block takes.
TILE = 1024


def gate_work(tokens: int, context: WorkContext) -> Work:
    """Gate and up read, their product written; a thread block for every TILE values of a row."""
    values = tokens * context.shape.ffn
    return Work(
        flops=5.0 * values,
        hbm_bytes=3 * values * context.activation_bytes,
        ctas=tokens * -(-context.shape.ffn // TILE),
    )
