"""Work of scoring with the true query."""

from __future__ import annotations

import attrs

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import known_entries, visible_entries
from sparda_core.kernels.entry_work import SCORE_BYTES, scoring_work
from sparda_core.kernels.score_query.splits import RESIDENT_PER_SM, split_entries
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Every query head (InfLLM-V2, stage 1).

    In decode two launches: the entries are read once, logits written in float32 and read again; thread blocks are
    those of the first. With several queries a row two passes over the entries: one for each head's normaliser, one for
    its share. The CPU kernel keeps a row of logits instead and reads the entries once per head.
    """
    heads, kv_heads = context.shape.q_heads, context.shape.kv_heads
    if facts.new_tokens > 1 or not facts.rows:
        return scoring_work(op, facts, context, heads=heads, passes=2)
    once = scoring_work(op, facts, context, heads=heads, passes=1)
    seen = visible_entries(op, facts, context.spec)[:, 0]
    span = split_entries(int(known_entries(op, facts, context.spec).max()), facts.rows * kv_heads)
    passed = 2 * SCORE_BYTES * float(seen.sum()) * heads
    return attrs.evolve(
        once, hbm_bytes=once.hbm_bytes + passed, passed_bytes=passed, launches=2,
        ctas=kv_heads * int((-(-seen // span)).sum()), ctas_per_sm=RESIDENT_PER_SM,
    )  # fmt: skip
