"""Work of the first stage of a two-stage choice, and of ranking the rest by their bias."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.footprint import BIAS_BYTES
from sparda_core.kernels.counts import known_entries, new_token_count, seen_blocks
from sparda_core.kernels.entry_work import SCORE_BYTES
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Scores read and written once, every mean read once a query's row; a comparison for each.

    One thread block a (row, KV head, query): a choice is made in one thread block's registers.
    """
    heads = context.shape.kv_heads
    scores = float(seen_blocks(facts, context.spec) * heads)
    means = float(known_entries(op, facts, context.spec).sum() * heads)
    return Work(
        flops=scores + means * facts.new_tokens,
        hbm_bytes=2 * scores * SCORE_BYTES + means * BIAS_BYTES,
        ctas=new_token_count(facts) * heads,
    )
