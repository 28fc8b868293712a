"""Work of writing blocks that a step has filled to a float8 host copy."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: float32 scales of a block's K and V.
_SCALE_BYTES = 8.0


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Every row's block that the step's last token filled: read from its slot, written down the link in one run.

    One thread block a (row, KV head) for K and one for V, whether or not there is something to do. Over many steps
    a row comes to 1 / block of a block a step: what `append` states for a host copy of that many bytes a value.
    """
    lengths = facts.lengths[facts.active]
    full = int((lengths % context.spec.block == 0).sum()) * context.shape.kv_heads
    return Work(
        hbm_bytes=full * (context.block_bytes + _SCALE_BYTES), d2h_bytes=full * context.host_block_bytes, pieces=full,
        ctas=2 * facts.rows * context.shape.kv_heads,
    )  # fmt: skip
