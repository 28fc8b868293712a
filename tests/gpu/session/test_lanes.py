"""Lanes and pieces: what is issued where, and that no two lanes can ever meet in one place. No device needed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
import pytest

from sparda_core.errors import PlanError
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.executor import Piece, pieces_of
from sparda_core.runtimes.gpu.lanes import Lanes, SerialLanes
from sparda_core.shapes import BlockSpec, ModelShape

Made = TypeVar("Made")
SHAPE = ModelShape(
    name="small", layers=4, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=97, context=512
)  # fmt: skip
#: A number behind a selector is its lead.
PAIRS = (
    ("query", "offload-sync"), ("forecast", "offload-sync"), ("forecast", "offload-prefetch"),
    ("forecast 2", "offload-sync"), ("forecast 2", "offload-prefetch"), ("forecast 3", "offload-prefetch"),
)  # fmt: skip


class Clocks(Lanes):
    """Vector clocks: how much of every lane has surely ended when an operation starts."""

    def __init__(self) -> None:
        self.now: dict[Lane, dict[Lane, int]] = {lane: {Lane.COMPUTE: 0, Lane.H2D: 0} for lane in Lane}
        self.marks: dict[str, dict[Lane, int]] = {}
        self.ran: list[tuple[int, Op, dict[Lane, int], int]] = []
        self.steps = 0

    def issue(self, op: Op) -> None:
        clock = self.now[op.lane]
        self.ran.append((self.steps, op, dict(clock), clock[op.lane]))
        clock[op.lane] += 1

    def step(self, work: Callable[[], Made]) -> Made:
        self.steps += 1
        return work()

    def on(self, lane: Lane) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def mark(self, lane: Lane, name: str) -> None:
        self.marks[name] = dict(self.now[lane])

    def wait(self, lane: Lane, name: str) -> None:
        clock = self.now[lane]
        for other, ended in self.marks[name].items():
            clock[other] = max(clock[other], ended)

    def hear(self, name: str) -> None:
        """Whatever is issued from now on is issued by a host that has waited."""
        for lane in self.now:
            self.wait(lane, name)

    def settle(self) -> None:
        """Nothing runs."""


def touched(op: Op) -> tuple[set[str], set[str]]:
    """What an operation reads and writes of its layer that an operation of another lane may touch too.

    `list` is the list of misses and its count, `slots` the slots, `blocks` the host's blocks. PROJECT may hold the
    append (fused), so it counts as one.
    """
    if op.kind == Kind.DIFF:
        return set(), {"list"}
    if op.kind == Kind.FETCH:
        return {"list", "blocks"}, {"slots"}
    if op.kind in (Kind.APPEND, Kind.PROJECT):
        return set(), {"slots", "blocks"}
    if op.kind == Kind.ATTEND:
        return {"slots"}, set()
    return set(), set()


def meet(a: tuple[int, Op], b: tuple[int, Op]) -> bool:
    """Whether two operations touch one thing, one of them writing. By the tail rule a step's copies and appends
    touch different slots and blocks; those of two steps may touch the same ones.
    """
    (step, one), (later, other) = a, b
    if one.layer != other.layer or one.lane == other.lane:
        return False
    kinds = {one.kind, other.kind}
    if step == later and Kind.FETCH in kinds and kinds & {Kind.APPEND, Kind.PROJECT}:
        return False
    (reads, writes), (sees, makes) = touched(one), touched(other)
    return bool(writes & (sees | makes) or makes & reads)


def races(plan: StepPlan, *, steps: int = 2, host_lists: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs of operations that may run side by side though they touch one thing."""
    clocks = Clocks()
    table = dict.fromkeys({op.kind for op in plan}, clocks.issue)

    def issue() -> None:
        for piece in pieces_of(plan, table, clocks, host_lists=host_lists):
            piece.begin()
            piece.issue()
            piece.end()

    for _ in range(steps):
        clocks.step(issue)
    for (step, one, _, at), (later, other, known, _) in itertools.combinations(clocks.ran, 2):
        if meet((step, one), (later, other)) and known[one.lane] <= at:
            yield f"{one.name} of step {step}", f"{other.name} of step {later}"


def plan_of(selector: str, runtime: str, *, resident: int | None = None) -> StepPlan:
    name, _, lead = selector.partition(" ")
    early = {"lead": int(lead)} if lead else {}
    layers = None if resident is None else max(resident, int(lead or 0))
    return RUNTIMES.make(runtime, resident_layers=layers).decode_plan(
        shape=SHAPE, spec=BlockSpec(), selector=SELECTORS.make(name, **early)
    )


@pytest.mark.parametrize(("selector", "runtime"), PAIRS)
@pytest.mark.parametrize("resident", [1, 2])
@pytest.mark.parametrize("host_lists", [False, True])
def test_no_operation_of_one_lane_runs_beside_one_of_the_other_that_touches_the_same(
    selector: str, runtime: str, resident: int, *, host_lists: bool
) -> None:
    assert list(races(plan_of(selector, runtime, resident=resident), steps=3, host_lists=host_lists)) == []


@pytest.mark.parametrize("lost", [Kind.FETCH, Kind.ATTEND])
def test_a_plan_that_forgets_to_wait_is_caught_by_the_same_check(lost: Kind) -> None:
    plan = plan_of("forecast", "offload-prefetch")
    ops = [attrs.evolve(op, after=()) if op.kind == lost else op for op in plan]
    assert list(races(attrs.evolve(plan, ops=ops)))


def test_so_is_attention_that_does_not_wait_for_a_copy_that_the_host_lists() -> None:
    plan = plan_of("forecast", "offload-prefetch")
    ops = [attrs.evolve(op, after=()) if op.kind == Kind.ATTEND else op for op in plan]
    assert list(races(attrs.evolve(plan, ops=ops), host_lists=True))


def test_a_copy_waits_for_its_diff_and_for_nothing_issued_after_it() -> None:
    clocks, plan = Clocks(), plan_of("forecast", "offload-prefetch")
    (piece,) = pieces_of(plan, dict.fromkeys({op.kind for op in plan}, clocks.issue), clocks, host_lists=False)
    piece.issue()
    compute = [op.name for _, op, _, _ in clocks.ran if op.lane == Lane.COMPUTE]
    for _, op, known, _ in clocks.ran:
        if op.kind == Kind.FETCH:
            assert compute[known[Lane.COMPUTE] - 1] == f"diff/{op.layer}"


def test_the_compute_lane_has_joined_every_copy_at_the_end_of_a_step() -> None:
    clocks = Clocks()
    ops = [Op(kind="embed"), Op(kind="fetch", layer=1, lane=Lane.H2D, after=("embed",)), Op(kind="head")]
    plan = StepPlan(
        ops=ops, phase=Phase.DECODE, runtime="odd", selector="odd", lead=1, resident_layers=1, engine="uva"
    )  # fmt: skip
    for piece in pieces_of(plan, dict.fromkeys(("embed", "fetch", "head"), clocks.issue), clocks, host_lists=False):
        piece.issue()
    assert clocks.now[Lane.COMPUTE][Lane.H2D] == 1


@pytest.mark.parametrize(("selector", "runtime"), PAIRS)
def test_a_plan_whose_copies_need_a_list_on_the_host_is_cut_at_each_of_them(selector: str, runtime: str) -> None:
    plan = plan_of(selector, runtime)
    pieces = pieces_of(plan, dict.fromkeys({op.kind for op in plan}, lambda _: None), SerialLanes(), host_lists=True)
    for lane in (Lane.COMPUTE, Lane.H2D):
        issued = [step.op for piece in pieces for step in piece.steps if step.op.lane == lane]
        assert issued == list(plan.lane(lane))
    for piece in pieces:
        kinds = [step.op.kind for step in piece.steps]
        assert piece.on_host == (kinds == [Kind.FETCH])
        # A capture must not wait for an event that was recorded outside of it.
        assert not any(step.waits for step in piece.steps)
    assert sum(piece.on_host for piece in pieces) == len(plan.lane(Lane.H2D))
    waited = [name for piece in pieces for name in piece.waits]
    assert waited == [op.name for op in plan.lane(Lane.H2D)]
    # Its list is told right behind what makes it.
    for piece in pieces:
        last = piece.steps[-1].op.name
        assert list(piece.lists) == [op for op in plan.lane(Lane.H2D) if op.after == (last,)]


def test_an_operation_without_a_binding_is_refused_by_name() -> None:
    plan = plan_of("query", "offload-sync")
    with pytest.raises(PlanError, match=r"'embed'.*no binding"):
        pieces_of(plan, {}, SerialLanes(), host_lists=False)
    ops = [op for op in plan if op.kind == Kind.FETCH]
    first = attrs.evolve(plan, ops=[attrs.evolve(op, after=()) for op in ops])
    with pytest.raises(PlanError, match=r"'fetch/0' comes first"):
        pieces_of(first, {Kind.FETCH: lambda _: None}, SerialLanes(), host_lists=True)


def test_operations_run_once_and_in_the_order_of_the_plan() -> None:
    plan, ran = plan_of("forecast", "offload-prefetch"), list[Op]()
    pieces: tuple[Piece, ...] = pieces_of(
        plan, dict.fromkeys({op.kind for op in plan}, ran.append), SerialLanes(), host_lists=False
    )
    for piece in pieces:
        piece.issue()
    assert ran == list(plan)
