"""Work of attention over chosen blocks."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.attend_dense.work import work as dense_work
from sparda_core.kernels.counts import new_token_count, query_positions
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Two products for each (query head, visible token); keys and values read once for a whole group.

    Visible are all tokens of the selected blocks but those after the query in its own block. In a prefill
    chunk `facts.selected` adds up the selections of all its queries; a chunk that selected nothing in
    this layer was dense, and its work is that of dense attention.
    """
    shape, spec = context.shape, context.spec
    selected = float(facts.selected[op.layer].sum())
    if facts.new_tokens > 1 and not selected:
        return dense_work(op, facts, context)
    unseen = (spec.block - 1 - query_positions(facts) % spec.block).sum()
    tokens = selected * spec.block - float(unseen) * shape.kv_heads if selected else 0.0
    moved = 2.0 * new_token_count(facts) * shape.q_heads * shape.head_dim
    return Work(
        flops=4.0 * tokens * shape.group * shape.head_dim,
        hbm_bytes=2.0 * tokens * shape.head_dim * context.kv_bytes + moved * context.activation_bytes,
        ctas=new_token_count(facts) * shape.kv_heads,
    )
