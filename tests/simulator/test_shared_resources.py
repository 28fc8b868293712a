"""Laws of shared resources: closed forms, capacity, conservation, and wake-ups that do not pile up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.simulator.fairshare import Demand, demand, fair_rates
from sparda_core.simulator.fluid import NEVER, Fluid
from sparda_core.simulator.link import SharedFlow, SharedResources

# One unit a nanosecond: then sizes are nanoseconds alone.
UNIT = 1e9
Job = tuple[int, float, dict[str, float], float]  # start in ns, size, uses, cap


@attrs.frozen
class Outcome:
    """Flows run to the end; the largest use of a resource as a share of its capacity; what passed, by rates."""

    flows: list[SharedFlow]
    shared: SharedResources
    peak: float
    passed: dict[str, float]


def run(jobs: Sequence[Job], capacity: dict[str, float], *, shift_ns: int = 0) -> Outcome:
    env = simpy.Environment()
    peak = 0.0
    passed = dict.fromkeys(capacity, 0.0)
    last: tuple[int, dict[str, float]] = (0, passed)

    def watch(now_ns: int, usage: dict[str, float]) -> None:
        nonlocal peak, last
        for name, rate in last[1].items():
            passed[name] += rate * (now_ns - last[0]) / UNIT
        last = now_ns, usage
        peak = max([peak, *(usage[name] / capacity[name] for name in capacity)])

    shared = SharedResources(env, capacity, watch)
    flows: dict[int, SharedFlow] = {}

    def job(index: int) -> simpy.events.ProcessGenerator:
        start_ns, size, uses, cap = jobs[index]
        yield env.timeout(start_ns + shift_ns)
        flows[index] = shared.start(size, uses, cap)
        yield flows[index].done

    env.run(until=env.all_of([env.process(job(i)) for i in range(len(jobs))]))
    return Outcome([flows[i] for i in range(len(jobs))], shared, peak, passed)


def ends(jobs: Sequence[Job], capacity: dict[str, float]) -> list[int | None]:
    return [flow.end_ns for flow in run(jobs, capacity).flows]


def on(size: float, start_ns: int = 0, cap: float = math.inf) -> Job:
    return start_ns, size, {"link": 1.0}, cap


def test_the_second_of_two_equal_flows_delays_the_first() -> None:
    assert ends([on(1000), on(1000, start_ns=50)], {"link": UNIT}) == [1950, 2000]


def test_three_flows_finish_when_computed_by_hand() -> None:
    # 1/3 each until 3000 (first done), 1/2 each until 5000, then the last alone.
    assert ends([on(1000), on(2000), on(3000)], {"link": UNIT}) == [3000, 5000, 6000]


def test_a_capped_flow_leaves_the_rest_to_the_others() -> None:
    assert ends([on(1000, cap=0.2 * UNIT), on(1000)], {"link": UNIT}) == [5000, 1250]


def test_a_flow_is_held_by_the_tightest_of_its_resources() -> None:
    both: Job = (0, 1000, {"link": 1.0, "memory": 1.0}, math.inf)
    assert ends([both, on(4000)], {"link": UNIT, "memory": 0.2 * UNIT}) == [5000, 5000]


def test_a_byte_that_takes_of_the_other_direction_too_slows_both() -> None:
    up: Job = (0, 1000, {"up": 1.0, "down": 0.25}, math.inf)
    down: Job = (0, 1000, {"down": 1.0, "up": 0.25}, math.inf)
    assert ends([up, down], {"up": UNIT, "down": UNIT}) == [1250, 1250]
    assert ends([up], {"up": UNIT, "down": UNIT}) == [1000]


def test_a_flow_can_be_slowed_and_released_in_mid_way() -> None:
    env = simpy.Environment()
    shared = SharedResources(env, {"link": UNIT})

    def job() -> simpy.events.ProcessGenerator:
        flow = shared.start(1000, {}, cap=UNIT)
        yield env.timeout(400)
        shared.slow({flow: 4.0})
        yield env.timeout(400)
        shared.slow({flow: 1.0})
        yield flow.done
        assert env.now == 400 + 400 + 500

    env.run(until=env.process(job()))


@given(a=st.integers(1, 10**6), b=st.integers(1, 10**6), late=st.integers(0, 10**6))
def test_two_flows_follow_the_closed_form_at_any_stagger(a: int, b: int, late: int) -> None:
    if a <= late:
        want = [a, late + b]
    elif a - late <= b:
        want = [late + 2 * (a - late), a + b]
    else:
        want = [a + b, late + 2 * b]
    for got, expected in zip(ends([on(a), on(b, start_ns=late)], {"link": UNIT}), want, strict=True):
        assert got is not None
        assert expected <= got <= expected + 2


amounts = st.sampled_from([0.25, 0.5, 1.0, 3.0])
resources = st.dictionaries(st.sampled_from(["hbm", "up", "down"]), amounts, min_size=1)
jobs_of = st.lists(
    st.tuples(st.integers(0, 5000), st.floats(1, 5000), resources, st.sampled_from([UNIT / 7, UNIT / 2, math.inf])),
    min_size=1, max_size=6,
)  # fmt: skip
CAPACITY = {"hbm": UNIT, "up": UNIT / 3, "down": UNIT / 2}


@given(jobs=jobs_of)
def test_no_resource_ever_gives_more_than_it_has_and_no_unit_is_lost(jobs: list[Job]) -> None:
    got = run(jobs, CAPACITY)
    # Every flow may run into the nanosecond that its end is rounded up to.
    tick = (len(jobs) + 1) * 3.0
    assert got.peak <= 1 + 1e-9
    assert all(flow.moved == flow.size for flow in got.flows)
    for name in CAPACITY:
        want = sum(size * uses.get(name, 0.0) for _, size, uses, _ in jobs)
        assert got.shared.served[name] == pytest.approx(want, rel=1e-9)
        assert got.passed[name] == pytest.approx(want, abs=tick)


@given(jobs=jobs_of, shift=st.integers(1, 10**12))
def test_a_later_start_shifts_every_finish_by_exactly_as_much(jobs: list[Job], shift: int) -> None:
    early, late = run(jobs, CAPACITY).flows, run(jobs, CAPACITY, shift_ns=shift).flows
    assert [flow.end_ns for flow in late] == [(flow.end_ns or 0) + shift for flow in early]


@given(starts=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000)), min_size=1, max_size=8))
def test_the_link_is_never_idle_while_a_flow_waits(starts: list[tuple[int, int]]) -> None:
    busy_until = 0
    for start, size in sorted(starts):
        busy_until = max(busy_until, start) + size
    last = max(end or 0 for end in ends([on(size, start_ns=start) for start, size in starts], {"link": UNIT}))
    assert busy_until <= last <= busy_until + len(starts)


demands_of = st.lists(
    st.builds(demand, resources, st.sampled_from([UNIT / 9, UNIT / 4, math.inf])), min_size=1, max_size=8
)


@given(demands=demands_of, seed=st.integers(0, 99))
def test_rates_are_fair_and_do_not_depend_on_the_order(demands: list[Demand], seed: int) -> None:
    rates = fair_rates(demands, CAPACITY)
    used = {
        name: sum(dict(d.uses).get(name, 0.0) * r for d, r in zip(demands, rates, strict=True)) for name in CAPACITY
    }
    assert all(used[name] <= CAPACITY[name] * (1 + 1e-9) for name in CAPACITY)
    for mine, rate in zip(demands, rates, strict=True):
        at_cap = rate == pytest.approx(mine.cap)
        # A full resource of which nobody takes at a higher rate: raising mine would lower an equal or smaller one.
        blocked = any(
            used[name] >= CAPACITY[name] * (1 - 1e-9)
            and all(other <= rate * (1 + 1e-9) for d, other in zip(demands, rates, strict=True) if name in dict(d.uses))
            for name, _ in mine.uses
        )
        assert at_cap or blocked
    order = np.random.default_rng(seed).permutation(len(demands)).tolist()
    assert fair_rates([demands[i] for i in order], CAPACITY) == tuple(rates[i] for i in order)


def test_wake_ups_do_not_pile_up_while_short_flows_pass_a_long_one() -> None:
    env = simpy.Environment()
    shared = SharedResources(env, {"link": UNIT})
    deepest = 0

    def short() -> simpy.events.ProcessGenerator:
        nonlocal deepest
        for _ in range(500):
            flow = shared.start(10, {"link": 1.0})
            deepest = max(deepest, shared.armed, len(env._queue))
            yield flow.done
            yield env.timeout(7)

    long = shared.start(20_000, {"link": 1.0})
    env.process(short())
    env.run(until=long.done)
    assert long.end_ns is not None
    assert deepest <= 4


def test_a_share_fixed_at_the_start_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Fluid.solve

    def once(self: Fluid, now_ns: int) -> None:
        before = {flow: flow.rate for flow in self.flows if flow.rate}
        solve(self, now_ns)
        for flow, rate in before.items():
            flow.change_rate(rate, now_ns)
        self.due_ns = min([flow.due_ns for flow in self.flows], default=NEVER)

    monkeypatch.setattr(Fluid, "solve", once)
    assert ends([on(1000), on(1000, start_ns=50)], {"link": UNIT}) != [1950, 2000]
    assert run([on(1000), on(1000, start_ns=50)], {"link": UNIT}).peak > 1.4


def test_a_flow_of_nothing_is_done_at_once() -> None:
    assert ends([on(0.0, start_ns=3)], {"link": UNIT}) == [3]


@pytest.mark.parametrize(
    ("size", "uses", "cap", "says"),
    [
        (-1.0, {"link": 1.0}, 1.0, "size=-1"),
        (math.nan, {"link": 1.0}, 1.0, "size=nan"),
        (1.0, {"lnk": 1.0}, 1.0, "known resources: \\['link'\\]"),
        (1.0, {}, math.inf, "neither"),
        (1.0, {"link": 1.0}, 0.0, "cap=0"),
    ],
)
def test_an_impossible_flow_is_refused(size: float, uses: dict[str, float], cap: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SharedResources(simpy.Environment(), {"link": UNIT}).start(size, uses, cap)


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity of 'link' is 0"):
        SharedResources(simpy.Environment(), {"link": 0.0})
