"""Laws of flows that share resources: capacity, conservation, fairness, closed forms, scaling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import attrs
import pytest
from hypothesis import strategies as st

from sparda_core.simulator import fluid
from sparda_core.simulator.fairshare import demand
from tests.simulator.laws.flows import UNIT, Job, Load, ends, on_link, play
from tests.simulator.laws.law import law


def _loads(jobs: Sequence[Job]) -> Load:
    return Load(tuple(jobs), {"hbm": UNIT, "up": UNIT / 3, "down": UNIT / 2})


starts = st.integers(0, 3000)
sizes = st.integers(1, 3000)
amounts = st.sampled_from([0.25, 0.5, 1.0, 3.0])
uses = st.dictionaries(st.sampled_from(["hbm", "up", "down"]), amounts, min_size=1)
caps = st.sampled_from([UNIT / 7, UNIT / 2, math.inf])
loads = st.lists(st.builds(Job, starts, st.floats(1, 5000), uses, caps), min_size=1, max_size=6).map(_loads)
plain = st.lists(st.tuples(starts, sizes), min_size=1, max_size=8).map(lambda jobs: on_link(*jobs))
few = st.lists(st.tuples(starts, sizes), min_size=2, max_size=3).map(lambda jobs: on_link(*jobs))
TWO = on_link((0, 1000), (50, 1000))


@law(loads, mutants={"share-fixed-at-start": _loads([Job(0, 900, {"up": 1.0}), Job(50, 900, {"up": 1.0})]),
                     "caps-forgotten": None})  # fmt: skip
def no_resource_ever_gives_more_than_it_has_and_no_flow_exceeds_its_cap(load: Load) -> None:
    played = play(load, watched=True)
    for _, usage in played.log:
        for name, rate in usage.items():
            most = load.jobs[int(name[3:])].cap if name.startswith("own") else load.capacity[name]
            assert rate <= most * (1 + 1e-9), f"{name} at {rate:g} of {most:g}"


@law(loads, mutants=["progress-lost-on-a-change"])
def every_flow_moves_exactly_its_size_and_resources_serve_their_sum(load: Load) -> None:
    played = play(load, watched=True)
    for i, job in enumerate(load.jobs):
        rates = [(length, played.rate(i, usage)) for length, usage in played.stretches()]
        moved = sum(rate * length / 1e9 for length, rate in rates)
        # A completion is rounded up: what passes in the last nanosecond is at most the last rate's.
        last = next((rate for _, rate in reversed(rates) if rate), 0.0)
        assert job.size * (1 - 1e-9) <= moved <= job.size * (1 + 1e-9) + last / 1e9
    for name, rate in load.capacity.items():
        want = sum(job.size * job.uses.get(name, 0.0) for job in load.jobs)
        tick = len(load.jobs) * rate / 1e9
        assert want * (1 - 1e-9) <= played.served(name) <= want * (1 + 1e-9) + tick


@law(loads, mutants=["rates-kept-when-a-flow-ends", "equal-split-whatever-the-caps"])
def every_pending_flow_is_at_its_cap_or_held_by_a_full_resource(load: Load) -> None:
    """Work conservation of a max-min share: the resource that holds a flow serves nobody at a higher rate."""
    played = play(load, watched=True)
    for _, usage in played.log:
        rates = {i: rate for i in range(len(load.jobs)) if (rate := played.rate(i, usage))}
        for i, rate in rates.items():
            job = load.jobs[i]
            held = any(
                usage[name] >= load.capacity[name] * (1 - 1e-9)
                and all(rates[j] <= rate * (1 + 1e-9) for j in rates if name in load.jobs[j].uses)
                for name in job.uses
            )
            assert held or rate == pytest.approx(job.cap), f"flow {i} at {rate:g} could have more"


tiny = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([1e-300, 1e-12, 1e-7, 1e-6, 0.5, 1.0, 1.0 + 1e-9])),
    min_size=1, max_size=5,
).map(lambda jobs: on_link(*jobs))


@law(tiny, mutants=["ends-below-a-tick-forgotten"])
def every_flow_ends_within_a_tick_of_its_time_however_small_it_is(load: Load) -> None:
    for got, want in zip(ends(load), virtual_time(load), strict=True):
        assert math.floor(want) <= got < want + len(load.jobs) + 1


@law(plain, mutants=["rates-kept-when-a-flow-ends"])
def the_link_is_busy_whenever_a_flow_is_pending(load: Load) -> None:
    played = play(load)
    for length, usage in played.stretches():
        assert not usage["link"] or usage["link"] == pytest.approx(UNIT), f"{usage['link']:g} for {length} ns"
    for (now_ns, usage), (later_ns, _) in itertools.pairwise(played.log):
        pending = [job for job, end in zip(load.jobs, played.ends_ns, strict=True) if job.start_ns <= now_ns < end]
        assert later_ns == now_ns or bool(usage["link"]) == bool(pending)


def virtual_time(load: Load) -> list[Fraction]:
    """Closed form of equal shares: V grows by 1/n a nanosecond, and a flow ends when V has grown by its size.

    Exact in fractions; walks from one end or start to the next.
    """
    arrivals = sorted((Fraction(job.start_ns), i) for i, job in enumerate(load.jobs))
    finish: dict[int, Fraction] = {}
    done: dict[int, Fraction] = {}
    now = grown = Fraction(0)
    while arrivals or finish:
        first = min((v, i) for i, v in finish.items()) if finish else None
        ends_at = now + (first[0] - grown) * len(finish) if first else None
        if ends_at is None or (arrivals and arrivals[0][0] < ends_at):
            at, i = arrivals.pop(0)
            grown += (at - now) / len(finish) if finish else 0
            now = at
            finish[i] = grown + Fraction(load.jobs[i].size)
        else:
            assert first is not None
            now, grown = ends_at, first[0]
            done[first[1]] = now
            del finish[first[1]]
    return [done[i] for i in range(len(load.jobs))]


@law(few, mutants={"share-fixed-at-start": TWO, "first-come-first-served": TWO, "rates-kept-when-a-flow-ends": None,
                   "completion-rounded-down": None})  # fmt: skip
def two_and_three_flows_end_when_the_closed_form_says_at_any_stagger(load: Load) -> None:
    for got, want in zip(ends(load), virtual_time(load), strict=True):
        assert want <= got < want + len(load.jobs), f"{got} ns, by hand {float(want):.2f}"


shares = st.sampled_from([Fraction(1, 5), Fraction(1, 2), Fraction(3, 4), Fraction(1)])
Capped = tuple[int, int, int, Fraction, Fraction]
two_capped: st.SearchStrategy[Capped] = st.tuples(sizes, sizes, starts, shares, shares)


@law(two_capped, mutants=["caps-forgotten", "equal-split-whatever-the-caps"])
def two_capped_flows_end_when_computed_by_hand(case: Capped) -> None:
    a, b, late, cap_a, cap_b = case
    jobs = (Job(0, a, cap=float(cap_a) * UNIT), Job(late, b, cap=float(cap_b) * UNIT))
    half = Fraction(1, 2)
    beside_a = min(Fraction(cap_a), max(half, 1 - Fraction(cap_b)))
    beside_b = min(Fraction(cap_b), max(half, 1 - Fraction(cap_a)))
    left = a - late * Fraction(cap_a)
    if left <= 0:
        want = [Fraction(a) / cap_a, late + Fraction(b) / cap_b]
    elif left / beside_a <= b / beside_b:
        first = left / beside_a
        want = [late + first, late + first + (b - beside_b * first) / cap_b]
    else:
        first = b / beside_b
        want = [late + first + (left - beside_a * first) / cap_a, late + first]
    for got, exact in zip(ends(Load(jobs)), want, strict=True):
        # The other's completion, rounded up, keeps a rate below the cap by at most a tick's worth.
        assert exact - Fraction(1, 10**6) <= got < exact + 5


@law(plain, mutants=["rates-kept-when-a-flow-ends", "a-tenth-lost-to-each-companion"])
def the_last_byte_of_a_busy_period_leaves_when_any_order_of_service_would_let_it(load: Load) -> None:
    until = periods = 0
    for job in sorted(load.jobs, key=lambda job: job.start_ns):
        periods += job.start_ns > until
        until = max(until, job.start_ns) + int(job.size)
    assert until <= max(ends(load)) < until + len(load.jobs)


@law(st.tuples(sizes, st.integers(1, 12)), mutants=["first-come-first-served", "a-tenth-lost-to-each-companion"])
def equal_flows_that_start_together_end_together_after_their_sum(case: tuple[int, int]) -> None:
    size, count = case
    assert set(ends(on_link(*[(0, size)] * count))) == {size * count}


@law(st.tuples(loads, st.sampled_from([2, 3, 10])), mutants=["rates-in-32-bits", "five-ns-a-flow"])
def all_rates_by_c_divides_all_times_by_c_within_a_tick_per_completion(case: tuple[Load, int]) -> None:
    load, by = case
    late = Load(tuple(attrs.evolve(job, start_ns=job.start_ns * by) for job in load.jobs), load.capacity)
    fast = Load(
        tuple(attrs.evolve(job, cap=job.cap * by) for job in load.jobs),
        {name: rate * by for name, rate in load.capacity.items()},
    )
    for slow_ns, fast_ns in zip(ends(late), ends(fast), strict=True):
        assert abs(slow_ns - by * fast_ns) <= by * len(load.jobs)


@law(st.tuples(loads, st.sampled_from([2, 3, 10])), mutants=["rates-in-32-bits"])
def bytes_and_bandwidth_by_c_change_nothing(case: tuple[Load, int]) -> None:
    load, by = case
    more = Load(
        tuple(attrs.evolve(job, size=job.size * by, cap=job.cap * by) for job in load.jobs),
        {name: rate * by for name, rate in load.capacity.items()},
    )
    for once, again in zip(ends(load), ends(more), strict=True):
        assert abs(once - again) <= len(load.jobs)


@law(st.tuples(loads, st.integers(1, 10**15)), mutants=["clock-in-float-seconds"])
def a_later_start_shifts_every_end_by_exactly_as_much(case: tuple[Load, int]) -> None:
    load, shift_ns = case
    assert ends(load, shift_ns=shift_ns) == tuple(end + shift_ns for end in ends(load))


@law(st.tuples(loads, st.randoms(use_true_random=False)), mutants=["first-come-first-served", "order-of-starts-weighs"])
def the_order_in_which_simultaneous_flows_start_changes_nothing(case: tuple[Load, object]) -> None:
    load, random = case
    together = [attrs.evolve(job, start_ns=job.start_ns // 1000 * 1000) for job in load.jobs]
    order = list(range(len(together)))
    random.shuffle(order)  # type: ignore[attr-defined]
    once = ends(attrs.evolve(load, jobs=tuple(together)))
    again = ends(attrs.evolve(load, jobs=tuple(together[i] for i in order)))
    assert again == tuple(once[i] for i in order)


@law(loads, mutants=["rates-by-order", "a-tenth-lost-to-each-companion"])
def rates_are_max_min_fair_and_equal_demands_get_equal_rates(load: Load) -> None:
    demands = [demand(job.uses, job.cap) for job in load.jobs] * 2
    solve = fluid.fair_rates  # type: ignore[attr-defined]  # where the simulator finds it, so that a mutant is seen
    rates = solve(demands, load.capacity)
    assert rates[: len(load.jobs)] == rates[len(load.jobs) :]
    assert solve(demands[::-1], load.capacity) == rates[::-1]
    used = dict.fromkeys(load.capacity, 0.0)
    for wanted, rate in zip(demands, rates, strict=True):
        for name, amount in wanted.uses:
            used[name] += rate * amount
    for wanted, rate in zip(demands, rates, strict=True):
        full = [name for name, _ in wanted.uses if used[name] >= load.capacity[name] * (1 - 1e-9)]
        assert full or rate == pytest.approx(wanted.cap)
    assert all(used[name] <= load.capacity[name] * (1 + 1e-9) for name in used)
