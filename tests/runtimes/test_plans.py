"""Laws of the plans that the built-in runtimes write, for any depth and any selector."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import CombinationError, ConfigError, PlanError
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.runtime import Runtime
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.resident import Resident
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import SHAPES, BlockSpec, ModelShape
from sparda_core.work import Work

SPEC = BlockSpec()
RUNTIMES = (Resident(), OffloadSync(), OffloadPrefetch())


class _Stub(Selector):
    """A selector of any lead, two operations."""

    name = "stub"

    def __init__(self, lead: int | None) -> None:
        self.lead = lead

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        return ("score", "select")

    def work(self, *_: object) -> Work:
        return Work()

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        raise AssertionError("a plan is written without tensors")


def shape_of(layers: int) -> ModelShape:
    return attrs.evolve(SHAPES["smollm2-135m"], layers=layers)


def fitting(lead: int | None) -> list[Runtime]:
    return [runtime for runtime in RUNTIMES if lead is None or lead >= runtime.min_lead]


cases = st.tuples(st.integers(5, 12), st.sampled_from([None, 0, 1, 2, 3])).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.just(case[1]), st.sampled_from(fitting(case[1])))
)


@given(case=cases)
def test_every_layer_attends_once_to_a_selection_made_before(case: tuple[int, int | None, Runtime]) -> None:
    layers, lead, runtime = case
    plan = runtime.decode_plan(shape=shape_of(layers), spec=SPEC, selector=_Stub(lead))
    names = [op.name for op in plan]
    for layer in range(layers):
        assert names.count(f"attend/{layer}") == names.count(f"select/{layer}") == 1
        assert names.index(f"select/{layer}") < names.index(f"attend/{layer}")
        assert names.index(f"entries/{layer}") < names.index(f"append/{layer}") < names.index(f"attend/{layer}")


@given(case=cases)
def test_a_selection_is_made_lead_layers_early_except_where_no_layer_is_early_enough(
    case: tuple[int, int | None, Runtime],
) -> None:
    layers, lead, runtime = case
    selector = _Stub(lead)
    plan = runtime.decode_plan(shape=shape_of(layers), spec=SPEC, selector=selector)
    for layer in range(layers):
        early = runtime.lead(selector) if layer >= runtime.lead(selector) else 0
        assert plan[f"select/{layer}"].layer - plan[f"select/{layer}"].source == early


@given(case=cases)
def test_offloaded_layers_and_no_others_are_diffed_and_fetched_once_and_waited_for(
    case: tuple[int, int | None, Runtime],
) -> None:
    layers, lead, runtime = case
    selector = _Stub(lead)
    plan = runtime.decode_plan(shape=shape_of(layers), spec=SPEC, selector=selector)
    assert plan.resident_layers == (runtime.lead(selector) if runtime.offloads else layers)
    for layer in range(layers):
        offloaded = layer >= plan.resident_layers
        assert (f"diff/{layer}" in plan) == (f"fetch/{layer}" in plan) == offloaded
        assert plan[f"attend/{layer}"].after == ((f"fetch/{layer}",) if offloaded else ())


@given(layers=st.integers(3, 9), lead=st.sampled_from([1, 2]))
def test_prefetch_issues_a_transfer_right_after_the_diff_and_sync_right_before_attention(
    layers: int, lead: int
) -> None:
    for runtime in (OffloadPrefetch(), OffloadSync()):
        plan = runtime.decode_plan(shape=shape_of(layers), spec=SPEC, selector=_Stub(lead))
        ops = list(plan)
        for i, op in enumerate(ops):
            if op.kind == Kind.FETCH:
                neighbour = ops[i - 1].name if runtime.early else ops[i + 1].name
                assert neighbour == (f"diff/{op.layer}" if runtime.early else f"attend/{op.layer}")


@given(case=cases, mode=st.sampled_from(["dense", "selector"]))
def test_prefill_stages_every_offloaded_layer_before_its_attention_over_two_buffers(
    case: tuple[int, int | None, Runtime], mode: str
) -> None:
    layers, lead, runtime = case
    plan = runtime.prefill_plan(shape=shape_of(layers), spec=SPEC, selector=_Stub(lead), mode=mode)
    names = [op.name for op in plan]
    for layer in range(layers):
        assert (f"stage/{layer}" in plan) == (layer >= plan.resident_layers)
        assert (f"select/{layer}" in plan) == (mode == "selector")
        if f"stage/{layer}" in plan:
            assert plan[f"attend/{layer}"].after == (f"stage/{layer}",)
            if layer >= 2:
                assert names.index(f"attend/{layer - 2}") < names.index(f"stage/{layer}")


@given(case=cases)
def test_a_plan_survives_json(case: tuple[int, int | None, Runtime]) -> None:
    layers, lead, runtime = case
    plan = runtime.decode_plan(shape=shape_of(layers), spec=SPEC, selector=_Stub(lead))
    assert StepPlan.from_json(plan.to_json()) == plan


def test_prefetch_refuses_a_selector_that_knows_nothing_early_and_names_a_way_out() -> None:
    with pytest.raises(CombinationError, match=r"nearest workable choice: .*offload-sync") as refused:
        OffloadPrefetch().decode_plan(shape=shape_of(4), spec=SPEC, selector=_Stub(0))
    assert (refused.value.selector, refused.value.runtime) == ("stub", "offload-prefetch")


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (OffloadSync(slots=8), "slots=8 must be >= budget=16"),
        (OffloadSync(policy="fifo"), "policy='fifo' is unknown; known: last-selection, lru"),
        (OffloadPrefetch(resident_layers=0), "resident_layers=0 must be between lead=1 and layers=4"),
        (OffloadPrefetch(resident_layers=5), "resident_layers=5 must be between lead=1 and layers=4"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_bound(runtime: Runtime, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runtime.decode_plan(shape=shape_of(4), spec=SPEC, selector=_Stub(1))


def test_a_lead_as_deep_as_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="lead=4 must be < layers=4"):
        Resident().decode_plan(shape=shape_of(4), spec=SPEC, selector=_Stub(4))


def plan_of(*ops: Op) -> StepPlan:
    return StepPlan(ops=ops, phase=Phase.DECODE, runtime="r", selector="s", lead=0, resident_layers=0, engine="thread")


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((), "no operations"),
        ((Op(kind="a"), Op(kind="a")), "'a' appears twice"),
        ((Op(kind="a", after=("b",)),), "'a' waits for 'b', which is not in the plan"),
        ((Op(kind="a", after=("a",)),), "'a' waits for 'a', which is issued later"),
        ((Op(kind="a", after=("b",)), Op(kind="b", lane=Lane.H2D, after=("a",))), "issued later: it would never start"),
    ],
)
def test_a_plan_that_could_never_finish_is_refused(ops: tuple[Op, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of(*ops)


def test_an_operation_follows_its_lane_and_its_waits() -> None:
    plan = plan_of(Op(kind="a"), Op(kind="b", lane=Lane.H2D, after=("a",)), Op(kind="c", after=("b",)))
    assert plan.predecessors(plan["c"]) == ("b", "a")
    assert plan.lane(Lane.COMPUTE) == (plan["a"], plan["c"])
    with pytest.raises(PlanError, match="'d' is not in the plan"):
        plan["d"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "5", "[" * 100_000, '{"ops": [{"kind": "a"}]}', '{"ops": 3}']
)
def test_a_malformed_plan_file_is_one_clear_error(text: str) -> None:
    with pytest.raises(PlanError, match="malformed"):
        StepPlan.from_json(text)
