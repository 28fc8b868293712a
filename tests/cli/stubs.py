"""Selectors, plans and timelines made by hand, for tests that need no model."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, Op, Phase, StepPlan
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.spans import Span, Timeline
from sparda_core.work import Work, WorkContext

SHAPE = ModelShape(
    name="stub", layers=4, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=97, context=4096
)
SPEC = BlockSpec(budget=8)


class Early(Selector):
    """A selector that knows one layer early."""

    name: ClassVar[str] = "early"
    lead = 1

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        return ("score", "select")

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return Work(flops=1.0)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> NoReturn:
        raise NotImplementedError


class Late(Early):
    """The same without a lead."""

    name: ClassVar[str] = "late"
    lead = 0


def decode_plan(runtime: Runtime, selector: Selector | None = None) -> StepPlan:
    return runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector or Early())


def play(plan: StepPlan, *, label: str, steps: int = 2, compute_ns: int = 1000, fetch_ns: int = 2500) -> Timeline:
    """Every operation as early as its lane and its waits allow."""
    free = dict.fromkeys(Lane, 0)
    spans = []
    for step in range(steps):
        ended: dict[str, int] = {}
        for op in plan:
            start = max([free[op.lane], *(ended[name] for name in op.after)])
            end = start + (compute_ns if op.lane == Lane.COMPUTE else fetch_ns)
            ended[op.name] = free[op.lane] = end
            spans.append(
                Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=start, end_ns=end, step=step)
            )
    return Timeline(label=label, spans=tuple(spans))
