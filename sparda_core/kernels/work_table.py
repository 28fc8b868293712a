"""Which function states the work of which kind of operation. Free of torch."""

from __future__ import annotations

from sparda_core.errors import PlanError
from sparda_core.facts import StepFacts
from sparda_core.kernels.append import work as append
from sparda_core.kernels.attend import work as attend
from sparda_core.kernels.diff import work as diff
from sparda_core.kernels.gather import work as gather
from sparda_core.kernels.linear import work as linear
from sparda_core.kernels.token_bias import work as token_bias
from sparda_core.plan import WHOLE_MODEL, Kind, Op, Phase, StepPlan
from sparda_core.selector import Selector
from sparda_core.work import Work, WorkContext, WorkFunction

WORK: dict[str, WorkFunction] = {
    Kind.EMBED: linear.embed_work,
    Kind.PROJECT: linear.project_work,
    Kind.ENTRIES: token_bias.entries_work,
    Kind.DIFF: diff.work,
    Kind.FETCH: gather.work,
    Kind.STAGE: gather.stage_work,
    Kind.APPEND: append.work,
    Kind.ATTEND: attend.work,
    Kind.OUTPUT: linear.output_work,
    Kind.MLP: linear.mlp_work,
    Kind.HEAD: linear.head_work,
}


#: Kinds whose work is the same for every layer.
_ALIKE = frozenset({Kind.EMBED, Kind.ENTRIES, Kind.STAGE, Kind.OUTPUT, Kind.MLP, Kind.HEAD})


def work_of(op: Op, facts: StepFacts, context: WorkContext, selector: Selector) -> Work:
    """Work of one operation: the selector's word for kinds it declares, the table's for the others.

    Raises PlanError for a kind that neither knows and for a layer that the facts do not cover.
    """
    if op.layer != WHOLE_MODEL and not 0 <= op.layer < facts.selected.shape[0]:
        raise PlanError(f"op {op.name!r} is for layer {op.layer}; the facts cover {facts.selected.shape[0]} layers")
    if _declares(selector, op):
        return selector.work(op, facts, context)
    if op.kind not in WORK:
        raise PlanError(
            f"op {op.name!r} has kind {op.kind!r}, which neither selector {selector.name!r} "
            f"nor the table of kernels states work for; known: {', '.join(sorted(WORK))}"
        )
    return WORK[op.kind](op, facts, context)


def tells_apart(op: Op, facts: StepFacts, context: WorkContext) -> tuple[object, ...] | None:
    """What tells the work of two operations of one of the runtime's kinds apart, within one step.

    Two operations of a kind for which this is equal have equal work under the same facts. None for kinds of
    which nothing is known: a selector's own.
    """
    if op.kind in _ALIKE:
        return ()
    if op.kind == Kind.PROJECT:
        return op.layer < context.forecast_lead, op.layer + context.forecast_lead < context.shape.layers
    if op.kind == Kind.APPEND:
        return (op.layer >= context.resident_layers,)
    if op.kind in (Kind.DIFF, Kind.FETCH):
        return (int(facts.misses[op.layer].sum()),)
    if op.kind == Kind.ATTEND:
        return (int(facts.selected[op.layer].sum()),)
    return None


def declared_kinds(selector: Selector, plan: StepPlan) -> frozenset[str]:
    """Kinds of which `selector` states the work in some layer of the plan, whatever else they may be called by."""
    places = {(op.layer, op.layer - op.source) for op in plan.ops if op.layer != WHOLE_MODEL}
    return frozenset(
        kind for layer, lead in places for phase in Phase for kind in selector.operations(layer, phase, lead)
    )


def _declares(selector: Selector, op: Op) -> bool:
    lead = op.layer - op.source
    return op.layer != WHOLE_MODEL and any(op.kind in selector.operations(op.layer, phase, lead) for phase in Phase)
