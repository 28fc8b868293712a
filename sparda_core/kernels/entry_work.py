"""Work of scoring entries; shared by every method that does it."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import known_entries, new_token_count, seen_blocks, visible_entries
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Block scores are float32.
SCORE_BYTES = 4.0


def scoring_work(op: Op, facts: StepFacts, context: WorkContext, *, heads: int, passes: int) -> Work:
    """`heads` query heads, each in `passes` passes over the entries of its KV head.

    Counted: the products (softmax and pooling are small beside them); entries read once a pass, queries
    read, block scores written. One thread block a (row, KV head, query).
    """
    shape = context.shape
    seen = float(visible_entries(op, facts, context.spec).sum())
    entries = float(known_entries(op, facts, context.spec).sum()) * shape.kv_heads * shape.head_dim
    queries = new_token_count(facts) * heads * shape.head_dim
    scores = seen_blocks(facts, context.spec) * shape.kv_heads
    return Work(
        flops=2.0 * passes * seen * heads * shape.head_dim,
        hbm_bytes=passes * entries * context.entry_bytes + queries * context.activation_bytes + scores * SCORE_BYTES,
        ctas=new_token_count(facts) * shape.kv_heads,
    )
