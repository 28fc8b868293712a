"""Work of the bias of new tokens, and of the means that they complete. Nothing where a model has no bias."""

from __future__ import annotations

import attrs

from sparda_core.facts import StepFacts
from sparda_core.footprint import BIAS_BYTES
from sparda_core.kernels.compress import work as compress
from sparda_core.kernels.counts import entry_counts, new_token_count
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Every head's value read for each of them, one float32 written; a completed mean reads its window once more."""
    heads, width = context.shape.kv_heads, context.shape.kv_heads * context.shape.head_dim
    tokens = new_token_count(facts)
    lengths = facts.lengths[facts.active]
    fresh = entry_counts(lengths, context.spec) - entry_counts(lengths - facts.new_tokens, context.spec)
    means = float(fresh.sum()) * heads
    read = heads * width * context.weight_bytes + tokens * width * context.activation_bytes
    return Work(
        flops=2.0 * tokens * heads * width + means * context.spec.window,
        hbm_bytes=read + (tokens * heads + means * (context.spec.window + 1)) * BIAS_BYTES,
        ctas=tokens * heads,
    )


def entries_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """What `entries` of the plan does: compressed keys, and beside them the token bias where the model has one."""
    keys = compress.work(op, facts, context)
    if not context.shape.token_bias:
        return keys
    bias = work(op, facts, context)
    return attrs.evolve(
        keys, flops=keys.flops + bias.flops, hbm_bytes=keys.hbm_bytes + bias.hbm_bytes, ctas=keys.ctas + bias.ctas,
        launches=keys.launches + bias.launches,
    )  # fmt: skip
