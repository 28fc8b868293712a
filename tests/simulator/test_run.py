"""A plan in virtual time: closed forms by hand, bounds that every schedule keeps, and the limits of contention."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, PlanError, ProfileError
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.simulator.fluid import ceil_ns
from sparda_core.simulator.run import WorkOfOp, run_step, run_steps, simulate
from sparda_core.spans import Span, Timeline, exposed_wait_ns
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, facts, gpu, pipeline, plan

US = 1000
# On the round machine: 1 MB of device memory or 50 kB of link are a microsecond, and so are 1e8 FLOPs.
COMPUTE: dict[str, Work] = {
    Kind.PROJECT: Work(hbm_bytes=10e6),
    Kind.DIFF: Work(),
    Kind.ATTEND: Work(hbm_bytes=5e6),
    Kind.MLP: Work(flops=2e9),
}


def moved(us: float) -> Work:
    return Work(h2d_bytes=us * 50e3, pieces=1, sms=2)


def span(timeline: Timeline, name: str) -> Span:
    return next(s for s in timeline.spans if s.name == name)


def step_us(made: StepPlan, table: dict[str, Work], **machine: float) -> float:
    return run_step(made, facts(), by_kind(table), gpu(**machine))[1] / US


def test_a_compute_operation_takes_the_longer_of_its_flops_and_its_bytes() -> None:
    made = plan(Op(kind=Kind.MLP, layer=0))
    assert step_us(made, {Kind.MLP: Work(flops=3e8, hbm_bytes=5e6)}) == 5
    assert step_us(made, {Kind.MLP: Work(flops=7e8, hbm_bytes=5e6)}) == 7


def test_a_small_grid_reaches_only_its_sms_share_of_the_flops() -> None:
    assert step_us(plan(Op(kind=Kind.MLP, layer=0)), {Kind.MLP: Work(flops=1e8, ctas=25)}) == 4


def test_one_kernel_draws_no_more_than_its_own_ceiling() -> None:
    assert step_us(plan(Op(kind=Kind.MLP, layer=0)), {Kind.MLP: Work(hbm_bytes=1e6)}, kernel=0.5e12) == 2


def test_a_transfer_that_fits_behind_compute_costs_nothing() -> None:
    table = {**COMPUTE, Kind.FETCH: moved(24)}
    # three layers of 10 + 5 + 20; the copy for the next layer has 5 + 20 + 10 to hide behind
    assert step_us(pipeline(3, early=True), table) == 105
    assert step_us(pipeline(3, early=False), table) == 105 + 2 * 24


def test_a_transfer_longer_than_compute_exposes_the_difference() -> None:
    timeline = simulate(pipeline(3, early=True), facts(), by_kind({**COMPUTE, Kind.FETCH: moved(50)}), gpu())
    assert exposed_wait_ns(timeline, pipeline(3, early=True)) == {1: 15 * US, 2: 15 * US}


def test_compute_runs_at_half_speed_while_a_copy_holds_sms() -> None:
    made = plan(
        Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0), Op(kind=Kind.MLP, layer=1)
    )  # fmt: skip
    table: dict[str, Work] = {Kind.FETCH: moved(50), Kind.MLP: Work(flops=25e8)}
    # The first product's 25 us take as long as the copy; the second one has every SM.
    assert step_us(made, table, slower=2) == 75
    assert step_us(made, table) == 50


def test_forgotten_contention_and_forgotten_waits_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**COMPUTE, Kind.FETCH: moved(50)}
    made = pipeline(3, early=True)
    without_waits = attrs.evolve(made, ops=[attrs.evolve(op, after=()) for op in made.ops])
    assert (step_us(made, table), step_us(without_waits, table)) == (135, 105)
    contended = step_us(made, table, slower=2)
    monkeypatch.setattr("sparda_core.simulator.machine.Machine.wave_factor", lambda *_: 1.0)
    assert step_us(made, table, slower=2) == 135 < contended


def test_a_copy_takes_its_bytes_of_device_memory_from_compute() -> None:
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0))
    table: dict[str, Work] = {
        Kind.FETCH: Work(h2d_bytes=5e6, hbm_bytes=5e6, pieces=1, sms=2),  # 100 us at 0.05 of 1 TB/s
        Kind.MLP: Work(hbm_bytes=95e6),
    }
    assert step_us(made, table) == 100


def test_transfers_both_ways_share_what_the_link_gives_both_ways() -> None:
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind="spill", layer=0, lane=Lane.D2H))
    table: dict[str, Work] = {Kind.FETCH: moved(100), "spill": Work(d2h_bytes=5e6)}
    assert step_us(made, table) == 100
    assert step_us(made, table, both=4e10) == 125


def test_launch_gaps_lie_before_spans_and_inside_operations_of_several_kernels() -> None:
    made = plan(Op(kind=Kind.PROJECT, layer=0), Op(kind=Kind.MLP, layer=0))
    table: dict[str, Work] = {Kind.PROJECT: Work(hbm_bytes=4e6), Kind.MLP: Work(hbm_bytes=4e6, launches=3)}
    timeline = simulate(made, facts(), by_kind(table), gpu(gap_s=1e-6))
    assert [(s.start_ns, s.end_ns) for s in timeline.spans] == [(1 * US, 5 * US), (6 * US, 12 * US)]


def test_eager_launches_bound_a_step_of_small_kernels() -> None:
    machine = gpu(gap_s=1e-6, eager_s=10e-6)
    table = dict.fromkeys(COMPUTE, Work(hbm_bytes=1e6))
    made = pipeline(3, early=True, fetch=False)
    assert run_step(made, facts(), by_kind(table), machine)[1] == 9 * 2 * US
    # nine launches of 10 us by the host, the last kernel after them
    assert run_step(made, facts(), by_kind(table), attrs.evolve(machine, launches="eager"))[1] == (9 * 10 + 2) * US


def test_no_misses_equal_no_copies_at_all() -> None:
    table = {**COMPUTE, Kind.DIFF: Work(launches=0), Kind.FETCH: Work(launches=0)}
    for early in (True, False):
        with_fetches = simulate(pipeline(3, early=early), facts(), by_kind(table), gpu(gap_s=1e-6, slower=3))
        without = simulate(pipeline(3, early=early, fetch=False), facts(), by_kind(table), gpu(gap_s=1e-6))
        assert with_fetches.lane(Lane.H2D) == ()
        assert [s for s in with_fetches.spans if s.kind != Kind.DIFF] == list(without.spans)


def lane_works(flops: int, hbm: int, up: int, down: int) -> dict[Lane, Work]:
    return {
        Lane.COMPUTE: Work(flops=flops, hbm_bytes=hbm),
        Lane.H2D: Work(h2d_bytes=up, hbm_bytes=up / 2, pieces=1, sms=2),
        Lane.D2H: Work(d2h_bytes=down),
    }


works = st.builds(
    lane_works, st.integers(0, 10**9), st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6)
)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[StepPlan, dict[str, Work]]:
    """Any lawful plan of up to ten operations on three lanes, with work for each."""
    ops: list[Op] = []
    table: dict[str, Work] = {}
    for layer in range(draw(st.integers(1, 10))):
        lane = draw(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.H2D, Lane.D2H]))
        after = draw(st.lists(st.sampled_from([op.name for op in ops]), unique=True, max_size=3)) if ops else []
        op = Op(kind="op", layer=layer, lane=lane, after=tuple(after))
        table[op.name] = draw(works)[lane]
        ops.append(op)
    return plan(*ops), table


def alone_ns(op: Op, work: Work) -> int:
    return run_step(plan(attrs.evolve(op, after=())), facts(), lambda *_: work, gpu())[1]


@given(scene=schedules())
def test_operations_keep_their_order_and_their_waits(scene: tuple[StepPlan, dict[str, Work]]) -> None:
    made, table = scene
    spans = {s.name: s for s in run_step(made, facts(), by_kind(table), gpu())[0]}
    assert spans.keys() <= {op.name for op in made.ops}
    for lane in Lane:
        on_lane = [spans[op.name] for op in made.lane(lane) if op.name in spans]
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(on_lane))
    for op in made.ops:
        for name in op.after:
            if op.name in spans and name in spans:
                assert spans[name].end_ns <= spans[op.name].start_ns


@given(scene=schedules())
def test_a_step_lies_between_its_critical_path_and_its_serial_sum(scene: tuple[StepPlan, dict[str, Work]]) -> None:
    made, table = scene
    got = run_step(made, facts(), by_kind(table), gpu())[1]
    alone = {op.name: alone_ns(op, table[op.name]) for op in made.ops}
    longest: dict[str, int] = {}
    for op in made.ops:
        longest[op.name] = alone[op.name] + max((longest[name] for name in made.predecessors(op)), default=0)
    slack = len(made.ops)
    works = table.values()
    floors = {
        "critical path": max(longest.values()) - slack,
        "flops": ceil_ns(sum(w.flops for w in works) / 1e14),
        "device memory": ceil_ns(sum(w.hbm_bytes for w in works) / 1e12),
        "up": ceil_ns(sum(w.h2d_bytes for w in works) / 5e10),
        "down": ceil_ns(sum(w.d2h_bytes for w in works) / 5e10),
    }
    assert max(floors.values()) <= got <= sum(alone.values()) + slack, floors


@given(scene=schedules())
def test_no_rate_exceeds_its_resource_and_spans_account_for_all_work(scene: tuple[StepPlan, dict[str, Work]]) -> None:
    made, table = scene
    machine = gpu(both=4e10)
    capacity = {**machine.capacity(), "sms_compute": machine.sms, "sms_copy": machine.sms}
    served = dict.fromkeys(capacity, 0.0)
    last: list[tuple[int, dict[str, float]]] = []

    def watch(now_ns: int, usage: dict[str, float]) -> None:
        for name, rate in usage.items():
            assert rate <= capacity[name] * (1 + 1e-9), name
        if last:
            for name, rate in last[-1][1].items():
                served[name] += rate * (now_ns - last[-1][0]) / 1e9
        last.append((now_ns, usage))

    spans = run_step(made, facts(), by_kind(table), machine, watch)[0]
    works = list(table.values())
    # Up to one tick of overshoot a change: a completion is rounded up.
    tick = {name: rate / 1e9 * (len(last) + 1) for name, rate in capacity.items()}
    assert served["flops"] == pytest.approx(sum(w.flops for w in works), abs=tick["flops"])
    assert served["hbm"] == pytest.approx(sum(w.hbm_bytes for w in works), abs=tick["hbm"])
    link = sum(s.args.get("link", 0.0) for s in spans)
    assert link == pytest.approx(sum(w.h2d_bytes + w.d2h_bytes for w in works))
    assert served["host"] == pytest.approx(link, abs=tick["h2d"] + tick["d2h"])


@given(scene=schedules(), factor=st.sampled_from([2.0, 4.0]))
def test_a_machine_twice_as_fast_takes_half_as_long(scene: tuple[StepPlan, dict[str, Work]], factor: float) -> None:
    made, table = scene
    slow = run_step(made, facts(), by_kind(table), gpu())[1]
    fast = run_step(made, facts(), by_kind(table), gpu(hbm=factor * 1e12, flop=factor * 1e14, link=factor * 5e10))[1]
    assert fast * factor == pytest.approx(slow, abs=factor * 3 * len(made.ops))


@given(scene=schedules(), factor=st.floats(1, 8))
def test_a_faster_link_never_slows_a_step_whose_copies_take_nothing_else(
    scene: tuple[StepPlan, dict[str, Work]], factor: float
) -> None:
    """Copies that draw on device memory are left out: a faster one may take it from compute at a worse moment."""
    made, table = scene
    table = {name: attrs.evolve(w, hbm_bytes=0) if w.h2d_bytes else w for name, w in table.items()}
    once = run_step(made, facts(), by_kind(table), gpu())[1]
    assert run_step(made, facts(), by_kind(table), gpu().with_link(5e10 * factor))[1] <= once + 2 * len(made.ops)


def test_equal_facts_give_the_same_step_again_exactly_shifted() -> None:
    table = {**COMPUTE, Kind.FETCH: moved(37.7)}
    made, machine = pipeline(3, early=True), gpu(gap_s=1.3e-6, step_s=9e-6)
    one = facts()
    shortcut = run_steps(made, [one] * 3, by_kind(table), machine)
    in_full = run_steps(made, [facts(), facts(), facts()], by_kind(table), machine)
    assert (shortcut.step_ns, shortcut.timeline) == (in_full.step_ns, in_full.timeline)
    assert [(number, times) for _, number, times in shortcut.distinct] == [(0, 3)]
    assert shortcut.step_ns[0] == shortcut.step_ns[2] == run_step(made, one, by_kind(table), machine)[1] + 9 * US
    assert {s.step for s in shortcut.timeline.spans} == {0, 1, 2}
    first, third = (
        [s for s in shortcut.timeline.spans if s.step == step and s.lane == Lane.COMPUTE] for step in (0, 2)
    )
    assert {b.start_ns - a.start_ns for a, b in zip(first, third, strict=True)} == {2 * shortcut.step_ns[0]}


def test_facts_of_each_step_set_the_work_of_that_step() -> None:
    made = pipeline(3, early=False)
    work: WorkOfOp = lambda op, seen: moved(seen.rows) if op.kind == Kind.FETCH else COMPUTE[Kind(op.kind)]  # noqa: E731
    got = run_steps(made, [facts(rows=10), facts(rows=30)], work, gpu())
    assert got.step_ns == ((105 + 2 * 10) * US, (105 + 2 * 30) * US)


@pytest.mark.parametrize(("engine", "right"), [("thread", "uva, copy-engine, cpu-gather"), ("warp", "uva")])
def test_an_engine_of_another_device_is_refused_by_name(engine: str, right: str) -> None:
    with pytest.raises(ProfileError, match=right):
        simulate(pipeline(3, early=True, engine=engine), facts(), by_kind(COMPUTE), gpu())


def test_a_plan_without_transfers_needs_no_engine() -> None:
    made = pipeline(3, early=True, engine="thread", fetch=False)
    assert simulate(made, facts(), by_kind(COMPUTE), gpu()).duration_ns == 105 * US


def test_an_engine_without_numbers_is_refused() -> None:
    with pytest.raises(ProfileError, match="no numbers for engine='cpu-gather'; it has: uva, copy-engine"):
        simulate(
            pipeline(3, early=True, engine="cpu-gather"), facts(), by_kind({**COMPUTE, Kind.FETCH: moved(1)}), gpu()
        )


@pytest.mark.parametrize(("field", "value"), [("flops", -1.0), ("hbm_bytes", math.nan), ("h2d_bytes", math.inf)])
def test_work_that_is_no_number_is_refused(field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(PlanError, match=f"mlp/0.*{field}"):
        simulate(plan(Op(kind=Kind.MLP, layer=0)), facts(), lambda *_: Work(**wrong), gpu())


def test_a_uva_transfer_that_holds_no_sms_is_refused() -> None:
    with pytest.raises(ProfileError, match="holds no SMs"):
        simulate(pipeline(3, early=True), facts(), by_kind({**COMPUTE, Kind.FETCH: Work(h2d_bytes=1.0)}), gpu())


def test_no_facts_are_refused() -> None:
    with pytest.raises(ConfigError, match="facts is empty"):
        simulate(pipeline(3, early=True), [], by_kind(COMPUTE), gpu())


SCRIPT = """
import json, attrs
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.run import simulate
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, facts, pipeline
table = {"project": Work(hbm_bytes=1e7), "diff": Work(hbm_bytes=3e5), "attend": Work(hbm_bytes=5e7, flops=3e9),
         "mlp": Work(hbm_bytes=4e8, flops=6e9), "fetch": Work(h2d_bytes=3e7, hbm_bytes=3e7, pieces=900, sms=2)}
timeline = simulate(pipeline(6, early=True), facts(layers=6), by_kind(table), load_profile("h200"))
print(json.dumps(attrs.asdict(timeline)))
"""


def test_the_same_run_is_the_same_to_the_byte_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("0", "1", "4711")
    }  # fmt: skip
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())["spans"]) == 6 * 3 + 2 * 5


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (Work(hbm_bytes=1e300), r"hbm_bytes=1e\+300 must be between 0 and 1e\+24"),
        (Work(flops=float("nan")), "flops=nan must be between"),
        (Work(ctas=8, ctas_per_sm=0), "ctas_per_sm=0 must be between 1"),
        (Work(ctas=8, cluster=0), "cluster=0 must be between 1"),
    ],
)
def test_work_that_no_machine_could_be_asked_for_is_refused(work: Work, says: str) -> None:
    made = pipeline(2, early=True)
    with pytest.raises(PlanError, match=says):
        run_step(made, facts(), lambda *_: work, gpu())
