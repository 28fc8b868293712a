"""Work of scoring with the Forecast."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.entry_work import scoring_work
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """One head per KV head, one pass: there is no softmax to normalise (SparDA, section 3)."""
    return scoring_work(op, facts, context, heads=context.shape.kv_heads, passes=1)
