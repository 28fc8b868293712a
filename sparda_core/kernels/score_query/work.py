"""Work of scoring with the true query."""

from __future__ import annotations

from sparda_core.facts import StepFacts
from sparda_core.kernels.entry_work import scoring_work
from sparda_core.plan import Op
from sparda_core.work import Work, WorkContext


def work(op: Op, facts: StepFacts, context: WorkContext) -> Work:
    """Every query head, two passes: one for each head's normaliser, one for its share (InfLLM-V2, stage 1).

    The CPU kernel keeps a row of logits instead and reads the entries once per head.
    """
    return scoring_work(op, facts, context, heads=context.shape.q_heads, passes=2)
