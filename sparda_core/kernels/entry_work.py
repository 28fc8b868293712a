"""Work of scoring entries; shared by every method that does it."""

from __future__ import annotations

import math

from sparda_core.facts import StepFacts
from sparda_core.kernels.counts import known_entries, new_token_count, seen_blocks, visible_entries
from sparda_core.kernels.pool.tiles import PROGRAMS_PER_SM, block_bytes, tile_blocks
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Block scores are float32.
SCORE_BYTES = 4.0


def scoring_work(op: Op, facts: StepFacts, context: WorkContext, *, heads: int, passes: int) -> Work:
    """`heads` query heads, each in `passes` passes over the entries of its KV head.

    Counted: the products (softmax and pooling are small beside them); entries read once a pass, queries
    read, block scores written. One thread block a (row, KV head, query); in decode those of the GPU kernel,
    each with the blocks of one tile.
    """
    shape = context.shape
    seen = float(visible_entries(op, facts, context.spec).sum())
    entries = float(known_entries(op, facts, context.spec).sum()) * shape.kv_heads * shape.head_dim
    queries = new_token_count(facts) * heads * shape.head_dim
    scores = seen_blocks(facts, context.spec) * shape.kv_heads
    ctas, per_sm = pooling_ctas(facts, context, reach=context.spec.entries_per_block, width=shape.head_dim)
    return Work(
        flops=2.0 * passes * seen * heads * shape.head_dim,
        hbm_bytes=passes * entries * context.entry_bytes + queries * context.activation_bytes + scores * SCORE_BYTES,
        ctas=ctas, ctas_per_sm=per_sm,
    )  # fmt: skip


def pooling_ctas(facts: StepFacts, context: WorkContext, *, reach: int, width: int) -> tuple[int, int]:
    """Thread blocks that score `reach` keys of `width` values a block, and how many one SM holds at once."""
    heads = context.shape.kv_heads
    if facts.new_tokens > 1 or not facts.rows:
        return new_token_count(facts) * heads, 1
    blocks = [context.spec.block_count(int(tokens)) for tokens in facts.lengths[facts.active]]
    each = block_bytes(reach, width, math.ceil(context.entry_bytes))
    tile = tile_blocks(max(blocks), len(blocks) * heads, each)
    return heads * sum(-(-count // tile) for count in blocks), PROGRAMS_PER_SM
