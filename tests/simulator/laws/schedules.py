"""Laws of a plan in virtual time: order, bounds, conservation, scaling, shifts, and the order of issue."""

from __future__ import annotations

import itertools
import random

import attrs
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op
from sparda_core.simulator import run
from sparda_core.simulator.profile import Price
from tests.simulator.laws.law import law
from tests.simulator.laws.machine import Log, Machine, Schedule, charges_on, no_work, schedules
from tests.simulator.scenes import facts, plan


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@law(schedules(), mutants=["contention-forgotten"])
def no_resource_gives_more_than_it_has_while_a_plan_runs(case: Schedule) -> None:
    log: Log = []
    case.run(log)
    for _, usage in log:
        for name, rate in case.machine.rates.items():
            assert usage[name] <= rate * (1 + 1e-9), f"{name} at {usage[name]:g} of {rate:g}"


@law(schedules(), mutants=["progress-lost-on-a-change", "last-charge-dropped"])
def all_work_of_a_plan_is_served_once(case: Schedule) -> None:
    log: Log = []
    spans, _ = case.run(log)
    assert not log or not any(log[-1][1].values()), "a flow runs on after the step"
    for name, rate in case.machine.rates.items():
        served = sum(now[1][name] * (later[0] - now[0]) for now, later in itertools.pairwise(log)) / 1e9
        charges = [charge for op in case.plan for charge in case.price(op.name).charges]
        want = sum(charge.size * charge.uses.get(name, 0.0) for charge in charges)
        # A completion is rounded up by less than a tick.
        assert want * (1 - 1e-9) <= served <= want * (1 + 1e-9) + len(charges) * rate / 1e9, name
    for name, span in spans.items():
        for charge in case.price(name).charges:
            assert span.args[charge.label] == charge.size


@law(schedules(), mutants=["waits-forgotten", "everything-on-one-lane", "launch-gaps-forgotten", "late-wake-of-lanes"])
def an_operation_starts_one_launch_gap_after_what_it_waits_for_neither_earlier_nor_later(case: Schedule) -> None:
    spans, _ = case.run()
    ended: dict[str, int] = {}
    for op in case.plan:
        ready = max((ended[name] for name in case.plan.predecessors(op)), default=0)
        price = case.price(op.name)
        if op.name in spans:
            assert spans[op.name].start_ns == ready + ns(price.launch_s), op.name
            ended[op.name] = spans[op.name].end_ns
        else:
            assert price.nothing, f"{op.name} never ran"
            ended[op.name] = ready


@law(schedules(), mutants=["charges-one-after-another", "latency-forgotten"])
def an_operation_alone_takes_its_latency_and_its_longest_flow(case: Schedule) -> None:
    for op in case.plan:
        price = case.price(op.name)
        longest = 0.0
        for charge in price.charges:
            rate = min(charge.cap, *(case.machine.rates[name] / used for name, used in charge.uses.items()))
            longest = max(longest, charge.size / rate)
        want = price.launch_s + price.latency_s + longest
        assert want * 1e9 - 1e-3 <= case.alone_ns(op.name) < want * 1e9 + 2


def both_ways(size: int) -> Schedule:
    """A copy up and a copy down, side by side on host memory that has not enough for both."""
    ops = [Op(kind="op", layer=i, lane=lane) for i, lane in enumerate((Lane.H2D, Lane.D2H))]
    prices = {op.name: Price(copies=True, charges=charges_on(op.lane, {"link": size}, 1.0)) for op in ops}
    return Schedule(plan=plan(*ops), machine=Machine(prices=prices))


@law(schedules(), examples=40, mutants={"contention-forgotten": both_ways(10**6), "waits-forgotten": None,
                                        "everything-twice": None, "latency-forgotten": None})  # fmt: skip
def a_step_lies_between_its_critical_path_or_busiest_resource_and_its_serial_sum(case: Schedule) -> None:
    _, long_ns = case.run()
    path: dict[str, float] = {}
    total = 0.0
    busy = dict.fromkeys(case.machine.rates, 0.0)
    for op in case.plan:
        price = case.price(op.name)
        alone = 0.0
        for charge in price.charges:
            rate = min(charge.cap, *(case.machine.rates[name] / used for name, used in charge.uses.items()))
            alone = max(alone, charge.size / rate)
            for name, used in charge.uses.items():
                busy[name] += charge.size * used / case.machine.rates[name]
        alone += price.launch_s + price.latency_s
        path[op.name] = alone + max((path[name] for name in case.plan.predecessors(op)), default=0.0)
        total += alone
    floors = {"critical path": max(path.values()), **busy}
    assert max(floors.values()) * 1e9 - 1e-3 <= long_ns <= total * 1e9 + 2 * len(path), floors


def faster(price: Price, by: float) -> Price:
    charges = tuple(attrs.evolve(charge, cap=charge.cap * by) for charge in price.charges)
    return attrs.evolve(price, charges=charges, launch_s=price.launch_s / by, latency_s=price.latency_s / by)


def larger(price: Price, by: float) -> Price:
    charges = tuple(attrs.evolve(c, cap=c.cap * by, size=c.size * by) for c in price.charges)
    return attrs.evolve(price, charges=charges)


def with_rates(case: Schedule, by: float) -> Schedule:
    rates = {name: rate * by for name, rate in case.machine.rates.items()}
    return attrs.evolve(case, machine=attrs.evolve(case.machine, rates=rates))


scaled = st.tuples(schedules(), st.sampled_from([2, 3, 10]))


@law(scaled, mutants=["five-ns-a-flow", "rates-in-32-bits"])
def a_machine_c_times_as_fast_takes_a_cth_of_the_time_within_ticks(case: tuple[Schedule, int]) -> None:
    once, by = case
    quick = with_rates(once, by).repriced(lambda price: faster(price, by))
    # Launch, latency and flows of an operation are rounded up one by one.
    assert abs(once.run()[1] - by * quick.run()[1]) <= by * 3 * len(once.plan.ops)


@law(scaled, mutants=["rates-in-32-bits"])
def a_plan_with_bytes_and_bandwidth_times_c_takes_as_long(case: tuple[Schedule, int]) -> None:
    once, by = case
    more = with_rates(once, by).repriced(lambda price: larger(price, by))
    assert abs(once.run()[1] - more.run()[1]) <= 2 * len(once.plan.ops)


@law(st.tuples(schedules(), st.integers(1, 10**6)), mutants=["gap-between-steps-lost", "spans-in-whole-microseconds"])
def a_later_step_is_the_first_one_shifted_by_whole_nanoseconds(case: tuple[Schedule, int]) -> None:
    schedule, between_ns = case
    machine = attrs.evolve(schedule.machine, between_s=between_ns / 1e9)
    alone, long_ns = schedule.run()
    done = run.run_steps(schedule.plan, [facts()] * 2 + [facts(rows=2)], no_work, machine)
    assert done.step_ns == (between_ns + long_ns,) * 3
    for span in done.timeline.spans:
        shift_ns = between_ns + span.step * (between_ns + long_ns)
        first = alone[span.name]
        assert (span.start_ns, span.end_ns) == (first.start_ns + shift_ns, first.end_ns + shift_ns)


def reordered(case: Schedule, seed: int) -> Schedule:
    """The plan in another order of issue: every lane's own order and every wait are kept."""
    draw = random.Random(seed)  # noqa: S311 - a shuffle, reproducible from the case
    left, issued = list(case.plan.ops), list[Op]()
    while left:
        names = {op.name for op in issued}
        ready = [op for op in left if names.issuperset(case.plan.predecessors(op))]
        issued.append(draw.choice(ready))
        left.remove(issued[-1])
    return attrs.evolve(case, plan=attrs.evolve(case.plan, ops=issued))


@law(st.tuples(schedules(), st.integers(0, 99)), mutants=["one-queue-of-launches"])
def the_order_of_issue_between_lanes_changes_nothing_on_a_device(case: tuple[Schedule, int]) -> None:
    once, seed = case
    assert reordered(once, seed).run() == once.run()


@law(schedules(), mutants=["copy-without-work-costs-a-microsecond"])
def copies_without_work_latency_and_launch_take_no_time(case: Schedule) -> None:
    nothing = case.repriced(lambda price: Price(copies=True) if price.copies else price)
    spans, long_ns = nothing.run()
    waits = {op.name: op.after for op in case.plan}
    lanes = {op.name: op.lane for op in case.plan}

    def through(name: str) -> set[str]:
        """The compute operations that `name` stands for: itself, or whatever the copy waited for."""
        if lanes[name] == Lane.COMPUTE:
            return {name}
        before = [other.name for other in case.plan.lane(lanes[name])]
        mine = before[: before.index(name)][-1:]
        return set().union(*map(through, (*waits[name], *mine)))

    kept = [
        attrs.evolve(op, after=tuple(sorted(set().union(*map(through, op.after)))))
        for op in case.plan.lane(Lane.COMPUTE)
    ]
    if not kept:
        assert long_ns == 0
        return
    assert attrs.evolve(nothing, plan=plan(*kept)).run() == (spans, long_ns)


@st.composite
def quiet_copies(draw: st.DrawFn) -> tuple[Schedule, float]:
    """Copies that take nothing but the link up, and a link so many times as fast."""
    case = draw(schedules())

    def quiet(price: Price) -> Price:
        if not price.copies:
            return price
        charges = tuple(attrs.evolve(charge, uses={"h2d": 1.0}) for charge in price.charges)
        return attrs.evolve(price, charges=charges)

    return case.repriced(quiet), draw(st.floats(1, 8))


@law(quiet_copies(), mutants=["link-rate-inverted"])
def a_faster_link_never_slows_a_step_whose_copies_take_nothing_else(case: tuple[Schedule, float]) -> None:
    once, by = case
    fast = attrs.evolve(once, machine=once.machine.with_link(once.machine.rates["h2d"] * by))
    assert fast.run()[1] <= once.run()[1] + 2 * len(once.plan.ops)
