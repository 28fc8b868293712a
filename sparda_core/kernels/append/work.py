"""Work of writing new tokens to the device tier, and of writing them through to the host store."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Key and value of every new token and KV head: read as activations, written to the tier."""
    heads = new_token_count(facts) * context.shape.kv_heads
    values = 2.0 * heads * context.shape.head_dim
    return Work(hbm_bytes=values * (context.activation_bytes + context.kv_bytes), ctas=heads)


def store_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """The same down the link; a token's key and its value are runs of their own in the host block."""
    heads = new_token_count(facts) * context.shape.kv_heads
    values = 2.0 * heads * context.shape.head_dim
    return Work(
        hbm_bytes=values * context.activation_bytes, d2h_bytes=values * context.host_kv_bytes, pieces=2 * heads, ctas=heads
    )
