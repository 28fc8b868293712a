"""Work of choosing blocks."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count, seen_blocks
from sparda_core.kernels.entry_work import SCORE_BYTES
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Ids are int32.
_ID_BYTES = 4.0


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Block scores read once, ids written; one comparison a block; one thread block a (row, KV head, query)."""
    scores = float(seen_blocks(facts, context.spec) * context.shape.kv_heads)
    selections = new_token_count(facts) * context.shape.kv_heads
    return Work(
        flops=scores, hbm_bytes=scores * SCORE_BYTES + selections * facts.budget * _ID_BYTES, ctas=selections,
        searched=float(context.spec.block_count(int(facts.lengths.max(initial=0)))),
    )
