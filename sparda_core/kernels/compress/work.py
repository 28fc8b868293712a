"""Work of updating entries."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import entry_counts
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """The windows that the new tokens complete: their keys read and added up, their means written.

    A step that completes none (in decode, `stride` - 1 of `stride` steps a row) only looks. In decode the kernel that
    rotates a token's key does it along, and nothing is launched for it.
    """
    lengths = facts.lengths[facts.active]
    fresh = entry_counts(lengths, context.spec) - entry_counts(lengths - facts.new_tokens, context.spec)
    entries = float(fresh.sum()) * context.shape.kv_heads
    values = entries * context.shape.head_dim
    return Work(
        flops=values * context.spec.window,
        hbm_bytes=values * (context.spec.window * context.kv_bytes + context.entry_bytes),
        ctas=int(entries), launches=int(facts.new_tokens > 1),
    )  # fmt: skip
