"""Work of moving blocks from the host store to the device."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """The misses of `op.layer`: each one contiguous run up the link, written to its slot."""
    return _transfer(int(facts.misses[op.layer].sum()), context)


def stage_work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Every block that holds a token from before the chunk, of every KV head, into the staging buffer."""
    earlier = facts.lengths[facts.active] - facts.new_tokens
    blocks = -(-earlier // context.spec.block)
    return _transfer(int(blocks.sum()) * context.shape.kv_heads, context)


def _transfer(blocks: int, context: WorkContext) -> Work:
    return Work(
        hbm_bytes=blocks * context.block_bytes, h2d_bytes=blocks * context.host_block_bytes, pieces=blocks,
        ctas=context.copy_ctas, sms=context.copy_ctas, cluster=context.copy_cluster,
        in_flight_bytes=context.copy_in_flight_bytes,
    )  # fmt: skip
