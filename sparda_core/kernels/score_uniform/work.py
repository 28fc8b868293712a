"""Work of scoring by a hash."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.entry_work import SCORE_BYTES
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Integer operations that hash one (position, layer, head, block): three multiplies, shifts, one xor each.
_HASH_OPS = 8


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """One hash and one float32 for every block of every active row and KV head."""
    blocks = sum(context.spec.block_count(int(tokens)) for tokens in facts.lengths)
    scores = float(blocks * facts.new_tokens * context.shape.kv_heads)
    return Work(flops=_HASH_OPS * scores, hbm_bytes=SCORE_BYTES * scores)
