"""Work of pooling, for a method that pools apart; scoring kernels pool as they score."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count, seen_blocks, visible_entries
from sparda_core.kernels.entry_work import SCORE_BYTES
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Entry scores read once, block scores written, one comparison for each entry of a block's reach."""
    heads = context.shape.kv_heads
    blocks = seen_blocks(facts, context.spec) * heads
    entries = float(visible_entries(op, facts, context.spec).sum()) * heads
    return Work(
        flops=float(blocks * context.spec.pool_width),
        hbm_bytes=(entries + blocks) * SCORE_BYTES,
        ctas=new_token_count(facts) * heads,
    )
