"""Segments: every operation once, each lane in its order, copies as late as the plan lets them be and no later."""

from __future__ import annotations

import pytest

from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.segments import segments_of
from sparda_core.shapes import BlockSpec, ModelShape

SHAPE = ModelShape(
    name="small", layers=6, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=97, context=512
)  # fmt: skip
PAIRS = (("query", "offload-sync", None), *(("forecast", f"offload-{how}", lead)
         for how in ("sync", "prefetch") for lead in (1, 2, 3)))  # fmt: skip


def plan_of(selector: str, runtime: str, lead: int | None) -> StepPlan:
    options = {} if lead is None else {"lead": lead}
    return RUNTIMES.make(runtime).decode_plan(
        shape=SHAPE, spec=BlockSpec(), selector=SELECTORS.make(selector, **options)
    )  # fmt: skip


def odd(*ops: Op) -> StepPlan:
    return StepPlan(
        ops=ops, phase=Phase.DECODE, runtime="odd", selector="odd", lead=1, resident_layers=0, engine="cpu-gather"
    )  # fmt: skip


@pytest.mark.parametrize(("selector", "runtime", "lead"), PAIRS)
def test_every_operation_is_issued_once_after_all_that_it_waits_for(
    selector: str, runtime: str, lead: int | None
) -> None:
    plan, issued = plan_of(selector, runtime, lead), list[str]()
    for segment in segments_of(plan):
        assert segment.on_host == (segment.ops[0].lane != Lane.COMPUTE)
        for op in segment.ops:
            assert set(op.after) <= set(issued)
            issued.append(op.name)
    assert sorted(issued) == sorted(op.name for op in plan)
    for lane in Lane:
        names = [op.name for op in plan.lane(lane)]
        assert [name for name in issued if name in names] == names


@pytest.mark.parametrize(("selector", "runtime", "lead"), PAIRS)
def test_the_host_takes_a_copy_up_right_before_the_first_segment_that_waits_for_it(
    selector: str, runtime: str, lead: int | None
) -> None:
    found = segments_of(plan_of(selector, runtime, lead))
    for at, segment in enumerate(found):
        if segment.on_host:
            later = next(one for one in found[at:] if not one.on_host)
            assert later.waits == (segment.ops[0].name,)


@pytest.mark.parametrize(("lead", "ahead"), [(1, 1), (2, 2), (3, 3)])
def test_a_plan_that_prefetches_leaves_the_device_a_segment_to_run_for_every_layer_of_lead(
    lead: int, ahead: int
) -> None:
    """Between the segment that makes a list and the copy come others, which the host need not wait for."""
    found = segments_of(plan_of("forecast", "offload-prefetch", lead))
    made = {name: at for at, segment in enumerate(found) for name in segment.lists}
    between = [
        sum(not one.on_host for one in found[made[segment.ops[0].name] + 1 : at])
        for at, segment in enumerate(found)
        if segment.on_host
    ]
    assert set(between) == {ahead}


def test_a_plan_that_waits_at_once_is_issued_in_its_own_order() -> None:
    plan = plan_of("forecast", "offload-sync", 1)
    assert [op for segment in segments_of(plan) for op in segment.ops] == list(plan)


def test_what_nobody_waits_for_comes_last_and_what_comes_first_has_no_list() -> None:
    copy = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D, after=("embed",))
    found = segments_of(odd(Op(kind=Kind.EMBED), copy, Op(kind=Kind.HEAD)))
    assert [segment.ops[0].kind for segment in found] == [Kind.EMBED, Kind.HEAD, Kind.FETCH]
    assert [segment.lists for segment in found] == [(copy.name,), (), ()]
    first = segments_of(odd(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.HEAD)))
    assert [(segment.ops[0].kind, segment.lists) for segment in first] == [(Kind.HEAD, ()), (Kind.FETCH, ())]
