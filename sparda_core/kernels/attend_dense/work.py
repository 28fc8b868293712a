"""Work of causal attention over everything."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.footprint import BIAS_BYTES
from sparda_core.kernels.counts import new_token_count, query_positions
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Two products for each (query head, query, earlier token); keys, values and biases read once a row."""
    shape = context.shape
    pairs = float((query_positions(facts) + 1).sum())
    read = 2.0 * float(facts.lengths[facts.active].sum()) * shape.kv_heads * shape.head_dim
    bias = float(facts.lengths[facts.active].sum()) * shape.kv_heads if shape.token_bias else 0.0
    moved = 2.0 * new_token_count(facts) * shape.q_heads * shape.head_dim
    return Work(
        flops=4.0 * pairs * shape.q_heads * shape.head_dim,
        hbm_bytes=read * context.kv_bytes + moved * context.activation_bytes + bias * BIAS_BYTES,
    )
