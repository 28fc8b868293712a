"""Layers are much alike: work that is not worked out again is the work that would have been."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.facts import StepFacts, steady_facts
from sparda_core.kernels.work_table import work_of
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.runtime import Runtime
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.resident import Resident
from sparda_core.selector import Selector
from sparda_core.selectors.declaration import layers_alike
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.query import Query
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator.predict import kernel_work
from sparda_core.work import Work, WorkContext

SHAPE = attrs.evolve(named_shape("minicpm4.1-8b"), layers=6)
SPEC = BlockSpec(sink=1, local=32, budget=96)
PAIRS = [(Resident(), Query()), (OffloadSync(engine="uva"), InfiniGen()), (OffloadPrefetch(engine="uva"), Forecast())]


def uneven(seed: int, plan: StepPlan, *, prefill: bool) -> StepFacts:
    """Facts whose layers differ, some of them by chance not."""
    even = steady_facts(shape=SHAPE, spec=SPEC, batch=2, context=9000, churn=0.2, resident_layers=plan.resident_layers)
    drawn = np.random.default_rng(seed)
    misses = even.misses * drawn.integers(0, 2, size=(SHAPE.layers, 1, 1))
    selected = np.maximum(misses, even.selected - drawn.integers(0, 2, size=(SHAPE.layers, 1, 1)))
    return attrs.evolve(even, misses=misses, selected=selected, new_tokens=64 if prefill else 1)


@pytest.mark.parametrize(("runtime", "selector"), PAIRS, ids=lambda part: part.name)
@pytest.mark.parametrize("prefill", [False, True])
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3))
def test_work_by_memory_is_the_work_that_each_operation_has(
    runtime: Runtime, selector: Selector, prefill: bool, seeds: list[int]  # noqa: FBT001
) -> None:
    if prefill:
        plan = runtime.prefill_plan(shape=SHAPE, spec=SPEC, selector=selector, mode="dense")
    else:
        plan = runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    of = WorkContext(
        shape=SHAPE, spec=SPEC, copy_ctas=3, forecast="forecast" in selector.needs
    ).under(plan)  # fmt: skip
    remembered = kernel_work(plan, of, selector)
    for seed in seeds:
        facts = uneven(seed, plan, prefill=prefill)
        for op in plan.ops:
            assert remembered(op, facts) == alone(op, facts, of, selector, plan)


@pytest.mark.parametrize("lead", [1, 2, 4])
def test_layers_that_forecast_for_others_or_for_themselves_are_told_apart_at_every_lead(lead: int) -> None:
    runtime, selector = OffloadPrefetch(engine="uva"), Forecast(lead=lead)
    plan = runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    of = WorkContext(
        shape=SHAPE, spec=SPEC, copy_ctas=3, forecast=True, forecast_lead=lead
    ).under(plan)  # fmt: skip
    remembered, facts = kernel_work(plan, of, selector), uneven(3, plan, prefill=False)
    for op in plan.ops:
        assert remembered(op, facts) == alone(op, facts, of, selector, plan)


def alone(op: Op, facts: StepFacts, of: WorkContext, selector: Selector, plan: StepPlan) -> Work:
    work = work_of(op, facts, of, selector)
    holds = work.h2d_bytes and op.lane != Lane.COMPUTE
    return attrs.evolve(work, sms=3 if plan.engine == "uva" else 0) if holds else work


def test_a_layer_that_is_told_from_the_others_would_be_missed_if_it_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, selector = PAIRS[2]
    plan = runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    of = WorkContext(shape=SHAPE, spec=SPEC, copy_ctas=3, forecast=True).under(plan)
    monkeypatch.setattr(
        "sparda_core.kernels.work_table.tells_apart", lambda op, *_: () if op.kind == Kind.FETCH else None
    )
    remembered, facts = kernel_work(plan, of, selector), uneven(3, plan, prefill=False)
    assert any(remembered(op, facts) != alone(op, facts, of, selector, plan) for op in plan.ops)


@attrs.frozen(kw_only=True)
class Borrowing(Query):
    """A third party's selector that calls an operation of its own by a name of the runtimes'."""

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        return ("stage", "select")

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return Work(hbm_bytes=1e6 * (1 + op.layer), ctas=132)


def test_a_selectors_own_operation_keeps_its_layers_apart_under_a_name_of_the_table() -> None:
    runtime, selector = OffloadSync(engine="uva"), Borrowing()
    plan = runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    of = WorkContext(shape=SHAPE, spec=SPEC, copy_ctas=3)
    remembered, facts = kernel_work(plan, of, selector), uneven(3, plan, prefill=False)
    for kind in ("stage", "select"):
        told = [remembered(op, facts).hbm_bytes for op in plan.ops if op.kind == kind]
        assert told == [1e6 * (1 + layer) for layer in range(SHAPE.layers)]


@attrs.frozen(kw_only=True)
class Deepening(Query):
    """A third party's `query` whose scoring grows from layer to layer."""

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return Work(hbm_bytes=1e6 * (1 + op.layer), ctas=132)


@attrs.frozen(kw_only=True)
class Mistaken(Deepening):
    """The same, marked as if it did not."""

    @layers_alike
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        return super().score_work(op, facts, context)


def scored(selector: Selector) -> list[float]:
    plan = OffloadSync(engine="uva").decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    remembered = kernel_work(plan, WorkContext(shape=SHAPE, spec=SPEC, copy_ctas=3), selector)
    facts = uneven(3, plan, prefill=False)
    return [remembered(op, facts).hbm_bytes for op in plan.ops if op.kind == "score"]


def test_scoring_that_a_subclass_states_anew_is_asked_for_layer_by_layer() -> None:
    own = [1e6 * (1 + layer) for layer in range(SHAPE.layers)]
    assert scored(Deepening()) == own
    assert scored(Mistaken()) != own, "the mark is what makes layers alike"
    assert len(set(scored(Query()))) == 1


def test_layers_of_built_in_scoring_are_worked_out_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    work = Query.work

    @layers_alike
    def counted(self: Query, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        asked.append(op.kind)
        return work(self, op, facts, context)

    monkeypatch.setattr(Query, "work", counted)
    scored(Query())
    assert asked == ["score"]
