"""Counters of a prediction: never negative, and what they integrate to is what was moved."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import CapacityError
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.simulator.cpu import KindCost
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.meters import metered
from sparda_core.simulator.observe import observe_steps
from sparda_core.simulator.predict import Prediction
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import run_step, run_steps, simulate
from sparda_core.trace import TraceSource, trace_events
from sparda_core.trace_counters import Usage, integral, settled
from sparda_core.whatif.scenario import Scenario
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, cpu, facts, gpu, pipeline
from tests.simulator.test_run import schedules

TABLE: dict[str, Work] = {
    Kind.PROJECT: Work(hbm_bytes=10e6), Kind.DIFF: Work(), Kind.ATTEND: Work(hbm_bytes=5e6, d2h_bytes=3e5),
    Kind.MLP: Work(flops=2e9, hbm_bytes=1e6), Kind.FETCH: Work(h2d_bytes=1e6, hbm_bytes=2e6, pieces=4, sms=2),
}  # fmt: skip
PLAN = pipeline(4, early=True)


def watched(profile: Profile, *, steps: int = 1) -> tuple[Usage, ...]:
    return observe_steps(PLAN, [facts()] * steps, by_kind(TABLE), profile)


def moved(resource: Callable[[Work], float]) -> float:
    return sum(resource(TABLE[op.kind]) for op in PLAN)


def rounding(usage: tuple[Usage, ...], resource: str) -> float:
    """Units in as many nanoseconds as there are operations: every completion may be rounded up by one."""
    return max(one.taken[resource] for one in usage) * len(PLAN.ops) / 1e9


@pytest.mark.parametrize("both", [5e10, 4e10, 2.5e10], ids=lambda both: f"both ways at {both:g}")
def test_counters_integrate_to_the_bytes_moved(both: float) -> None:
    usage = watched(gpu(link=5e10, both=both, gap_s=1e-6))
    wanted = {
        "hbm": moved(lambda work: work.hbm_bytes), "h2d": moved(lambda work: work.h2d_bytes),
        "d2h": moved(lambda work: work.d2h_bytes), "host": moved(lambda work: work.h2d_bytes + work.d2h_bytes),
        "flops": moved(lambda work: work.flops),
    }  # fmt: skip
    for resource, units in wanted.items():
        over = integral(usage, resource) - units
        assert -1e-6 * units <= over <= rounding(usage, resource) + 1e-6 * units, resource


def test_an_operation_that_moves_both_ways_is_told_each_way() -> None:
    both = {**TABLE, Kind.FETCH: Work(h2d_bytes=9e6, d2h_bytes=1e6, hbm_bytes=10e6, pieces=9, sms=2)}
    usage = observe_steps(PLAN, [facts()], by_kind(both), gpu(link=5e10, both=4e10))
    assert integral(usage, "h2d") == pytest.approx(3 * 9e6, rel=1e-4)
    assert integral(usage, "d2h") == pytest.approx(3 * 1e6 + 4 * 3e5, rel=1e-2)
    assert integral(usage, "hbm") == pytest.approx(3 * 10e6 + 4 * 16e6, rel=1e-4)


def test_each_of_several_gpus_gets_its_part_of_the_hosts_memory() -> None:
    scenario = Scenario(batch=2, churn=0.2, gpus=8)
    capacity = scenario.machine().capacity()["host"]
    peaks = [max(one.taken["host"] for one in scenario.turned(gpus=n).predict().usage) for n in (1, 8)]
    assert peaks[1] <= capacity / 8 * (1 + 1e-9) < peaks[0]


@given(scene=schedules(), both=st.sampled_from([5e10, 3.5e10, 2.5e10]), slower=st.sampled_from([1.0, 1.4]))
def test_under_any_plan_counters_integrate_to_its_bytes_and_a_trace_of_it_is_lawful(
    scene: tuple[StepPlan, dict[str, Work]], both: float, slower: float
) -> None:
    made, table = scene
    profile = gpu(both=both, slower=slower, gap_s=1e-6)
    steps = [run_step(made, facts(), by_kind(table), machine) for machine in (profile, metered(profile))]
    assert steps[0] == steps[1]  # meters change no time
    usage = observe_steps(made, [facts()], by_kind(table), profile)
    for resource, of in (("hbm", "hbm_bytes"), ("h2d", "h2d_bytes"), ("d2h", "d2h_bytes")):
        units = sum(getattr(work, of) for work in table.values())
        most = max((one.taken[resource] for one in usage), default=0.0)
        over = integral(usage, resource) - units
        assert -1e-6 * units <= over <= most * len(made.ops) / 1e9 + 1e-6 * units, resource
    timeline = simulate(made, facts(), by_kind(table), profile)
    events = trace_events([TraceSource(timeline=timeline, plan=made, usage=usage)])
    for phase in ("X", "C"):
        last: dict[tuple[int, str], float] = {}
        for event in (event for event in events if event["ph"] == phase):
            track = event["tid"], event["name"] if phase == "C" else ""
            assert event["ts"] >= last.get(track, 0.0)
            last[track] = event["ts"] + event.get("dur", 0.0) * (1 - 1e-12)


def test_a_byte_counted_twice_would_be_noticed() -> None:
    usage = watched(gpu(link=5e10, both=4e10))
    twice = tuple(attrs.evolve(one, taken={"h2d": 2 * one.taken["h2d"]}) for one in usage)
    assert integral(twice, "h2d") > moved(lambda work: work.h2d_bytes) + rounding(twice, "h2d")


def test_counters_are_never_negative_nor_above_capacity_and_end_at_nothing() -> None:
    for profile in (gpu(), gpu(link=5e10, both=3e10, gap_s=1e-6, slower=1.5)):
        usage = watched(profile, steps=2)
        capacity = profile.capacity()
        for one in usage:
            for resource, value in one.taken.items():
                assert 0 <= value <= capacity.get(resource, profile.compute.sms.value) * (1 + 1e-9)
        assert not any(usage[-1].taken.values())
        assert all(a.at_ns < b.at_ns for a, b in pairwise(usage))


def test_watching_keeps_the_clock_of_the_steps_that_are_watched() -> None:
    profile = attrs.evolve(gpu(step_s=7e-6, gap_s=1e-6))
    every = [facts(), facts(length=50)]
    run = run_steps(PLAN, every, by_kind(TABLE), profile)
    usage = observe_steps(PLAN, every, by_kind(TABLE), profile)
    assert usage[-1].at_ns == sum(run.step_ns)
    for step in (0, 1):
        first = min(span.start_ns for span in run.timeline.spans if span.step == step)
        assert next(one.at_ns for one in usage if one.step == step and any(one.taken.values())) == first


@pytest.mark.parametrize("link", [None, 1e9])
def test_a_cpu_tells_the_bytes_of_its_transfers(link: float | None) -> None:
    made = pipeline(4, early=True, engine="thread")
    cost = KindCost(fixed_s=1e-6, driver="h2d_bytes", per_unit_s=2e-10, slowdown=1.5)
    profile = cpu({f"decode/{kind}": cost for kind in TABLE})
    usage = observe_steps(made, [facts()], by_kind(TABLE), profile.with_link(link) if link else profile)
    assert integral(usage, "h2d") == pytest.approx(3e6, rel=1e-3)
    assert max(one.taken["h2d"] for one in usage) <= (link or 5e9)


def test_meters_change_no_time() -> None:
    machine = Scenario().machine()
    for work in (by_kind(TABLE), by_kind({**TABLE, Kind.FETCH: Work(h2d_bytes=9e6, d2h_bytes=1e6, pieces=9, sms=4)})):
        for profile in (machine, gpu(link=5e10, both=3e10, slower=1.3)):
            assert run_step(PLAN, facts(), work, metered(profile)) == run_step(PLAN, facts(), work, profile)


def test_of_several_values_at_one_time_the_last_stands() -> None:
    told = [Usage(0, 0, {"x": 1.0}), Usage(0, 0, {"x": 2.0}), Usage(3, 0, {"x": 2.0}), Usage(4, 0, {"x": 0.0})]
    assert settled(told) == (told[1], told[3])


def real(**knobs: object) -> Prediction:
    return Scenario(batch=16, churn=0.1, **knobs).predict()  # type: ignore[arg-type]


def test_a_real_prediction_moves_what_its_spans_say() -> None:
    got = real()
    usage = got.usage
    fetched = sum(span.args.get("link", 0.0) for span in got.timeline.lane(Lane.H2D))
    written = sum(span.args.get("link", 0.0) for span in got.timeline.lane(Lane.COMPUTE))
    assert fetched > 100 * written > 0
    assert integral(usage, "h2d") == pytest.approx(fetched, rel=1e-4)
    # Small writes last a few hundred nanoseconds each, so that one more weighs.
    assert integral(usage, "d2h") == pytest.approx(written, rel=5e-3)
    profile = Scenario().machine()
    assert isinstance(profile, GpuProfile)
    assert max(one.taken["h2d"] for one in usage) <= profile.link.h2d_bytes_per_s.value


def test_a_prediction_travels_between_processes_with_its_counters() -> None:
    got = real()
    assert pickle.loads(pickle.dumps(got)).usage == got.usage  # noqa: S301 - our own bytes


def test_a_point_that_does_not_fit_has_no_counters() -> None:
    with pytest.raises(CapacityError, match="out of memory"):
        _ = real(runtime="resident", context=1_000_000).usage
