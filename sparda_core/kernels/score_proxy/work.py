"""Work of scoring with a proxy query over partial keys (InfiniGen)."""

from __future__ import annotations

import numpy as np

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import new_token_count, query_positions, seen_blocks
from sparda_core.kernels.entry_work import SCORE_BYTES, pooling_ctas
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext, *, channels: int | None = None) -> Work:
    """One pass over every token's partial key of `channels` values (all of D when None).

    The group's queries are added up before, so the products count KV heads, not query heads. The
    projection that makes the proxy query is an operation of its own.
    """
    shape = context.shape
    width = shape.head_dim if channels is None else channels
    tokens = facts.lengths[facts.active] - (facts.new_tokens if op.source < op.layer else 0)
    seen = float(np.minimum(query_positions(facts) + 1, tokens[:, None]).sum())
    queries = new_token_count(facts)
    ctas, per_sm = pooling_ctas(facts, context, reach=context.spec.block, width=width)
    return Work(
        flops=queries * shape.q_heads * width + 2.0 * seen * shape.kv_heads * width,
        hbm_bytes=float(tokens.sum()) * shape.kv_heads * width * context.entry_bytes
        + queries * shape.q_heads * width * context.activation_bytes
        + seen_blocks(facts, context.spec) * shape.kv_heads * SCORE_BYTES,
        ctas=ctas, ctas_per_sm=per_sm,
    )  # fmt: skip
