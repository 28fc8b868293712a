"""Work of choosing next tokens."""

from __future__ import annotations

from sparda_core.work import Work, WorkContext

#: Logits that one thread block of the first launch looks at; logits are float32, a split leaves a value and an id.
SPLIT = 2048
LOGIT_BYTES = 4
_SPLIT_BYTES, _TOKEN_BYTES = 8, 8


def greedy_work(rows: int, context: WorkContext) -> Work:
    """Logits read once; the best of each split written and read; a token a row written."""
    splits = -(-context.shape.vocab // SPLIT)
    a_row = context.shape.vocab * LOGIT_BYTES + 2 * splits * _SPLIT_BYTES + _TOKEN_BYTES
    return Work(flops=float(rows * context.shape.vocab), hbm_bytes=rows * a_row, ctas=rows * splits, launches=2)
