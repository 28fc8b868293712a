"""Work of writing new tokens to the device tier and through to the host store."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Key and value of every new token and KV head: read as activations, written to the tier.

    An offloaded layer writes them through to the host store in the same kernel: a token's key and its
    value are runs of their own in the host block. A chunk of prefill goes to the host store alone. In decode the
    kernel that rotates stores along, where the token's slot is known by then: in resident layers, and in plans that
    look ahead.
    """
    heads = new_token_count(facts) * context.shape.kv_heads
    values = 2.0 * heads * context.shape.head_dim
    through = facts.slots > 0 and op.layer >= context.resident_layers
    along = facts.new_tokens == 1 and (not through or context.lead > 0)
    on_device = context.kv_bytes if facts.new_tokens == 1 or not through else 0.0
    return Work(
        hbm_bytes=values * (context.activation_bytes + on_device),
        d2h_bytes=values * context.host_kv_bytes if through else 0.0,
        pieces=2 * heads if through else 0,
        ctas=heads, launches=int(not along),
    )  # fmt: skip
