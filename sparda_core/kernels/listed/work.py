"""Work of writing a selection down."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext

#: Ids are int32.
_ID_BYTES = 4.0


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Ids written, as wide as the budget; too little for a thread block to matter."""
    return Work(hbm_bytes=_ID_BYTES * facts.rows * facts.new_tokens * context.shape.kv_heads * facts.budget)
