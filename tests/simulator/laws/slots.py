"""Laws of SM slots, of a copy engine's queue, of the host, and of what an engine may skip."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op
from sparda_core.simulator import run, sms
from sparda_core.simulator.profile import FLOPS, LINK, Charge, Grid, Price
from tests.simulator.laws.crowds import SMS, copy_grids, crowds, grids
from tests.simulator.laws.law import law
from tests.simulator.laws.machine import Log, Machine, Schedule, no_work, schedules
from tests.simulator.scenes import facts, plan

PAIR = 2


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@law(crowds(), mutants=["a-copy-cta-holds-no-sm", "compute-takes-every-sm"])
def held_sms_never_exceed_the_device(case: Schedule) -> None:
    log: Log = []
    case.run(log)
    for _, usage in log:
        assert usage["sms_copy"] >= 0 <= usage["sms_compute"]
        assert usage["sms_copy"] + usage["sms_compute"] <= SMS
    assert log[-1][1]["sms_copy"] == log[-1][1]["sms_compute"] == 0, "SMs are held after the step"
    wanted = [price.grid for price in case.machine.prices.values() if price.copies and price.grid]
    most = max((usage["sms_copy"] for _, usage in log), default=0)
    assert bool(wanted) == bool(most), "a copy ran without an SM"


Caps = tuple[tuple[float, float], ...]
Placing = tuple[Grid, Sequence[tuple[int, int]]]
placings = st.tuples(grids(SMS), st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 4])), max_size=6))


@law(placings, mutants=["three-on-a-tpc", "lone-copies-share-a-tpc"])
def a_tpc_never_holds_more_than_two_blocks_and_lone_copies_spread_first(case: Placing) -> None:
    """Placing copy blocks one kernel after another, and a compute kernel once there are two of them."""
    grid, kernels = case
    pool = sms.SmPool(SMS)
    held = [0] * (SMS // PAIR)
    for number, (ctas, cluster) in enumerate(kernels):
        if number == 2:
            pool.take(grid)
        placed = pool.place(ctas // cluster * cluster, cluster)
        before = list(held)
        for tpc in placed:
            held[tpc] += 1
        assert max(held) <= PAIR
        assert len(placed) % cluster == 0, "a part of a cluster was placed"
        assert pool.copy_sms == sum(held)
        assert pool.copy_sms + pool.compute_sms <= SMS
        if cluster == 1 and number < 2 and max(held) == PAIR and placed:
            assert min(held) > 0 or max(before) == PAIR, "a lone block shares a TPC though another is free"
    pool.give()
    assert pool.compute_sms == 0


@law(crowds(), mutants=["copies-wait-for-an-idle-lane"])
def a_copy_that_waits_for_an_sm_gets_one_at_the_next_boundary_at_the_latest(case: Schedule) -> None:
    """No starvation: at the latest when the kernel ends that was under way when the copy was ready."""
    spans, _ = case.run()
    for op in case.plan:
        price = case.price(op.name)
        if not (price.copies and price.grid):
            continue
        ready = max((spans[name].end_ns for name in case.plan.predecessors(op) if name in spans), default=0)
        ready += ns(price.launch_s)
        start = spans[op.name].start_ns
        kernels = [span for span in spans.values() if span.lane == Lane.COMPUTE]
        under_way = [span.end_ns for span in kernels if span.start_ns <= ready <= span.end_ns]
        assert start == ready or start <= max(under_way, default=-1), f"{op.name}: ready {ready} ns, began {start}"


@law(crowds(), mutants=["copies-are-preempted"])
def a_kernel_that_has_started_keeps_its_sms(case: Schedule) -> None:
    log: Log = []
    spans, _ = case.run(log)
    for name, span in spans.items():
        price = case.price(name)
        if price.grid is None:
            continue
        counter = "sms_copy" if price.copies else "sms_compute"
        held = [usage[counter] for now_ns, usage in log if span.start_ns <= now_ns < span.end_ns]
        if price.copies:
            assert held == sorted(held), f"{name} gave SMs back: {held}"
            assert not held or 1 <= held[-1] <= price.grid.ctas
        elif price.kernels == 1:
            assert len(set(held)) <= 1, f"{name} changed its SMs: {held}"


def late_blocks() -> Schedule:
    """A copy of four blocks that comes while a kernel holds all but two SMs, and before one that holds a single SM."""
    ops = (Op(kind="op", layer=0), Op(kind="op", layer=1, lane=Lane.H2D), Op(kind="op", layer=2))
    product = (Charge(label=FLOPS, size=10**9, uses={"flops": 1.0}, cap=1e14),)
    copy = (Charge(label=LINK, size=10**6, uses={"h2d": 1.0}, cap=4e10),)
    caps = tuple((1e10 * placed, 1e10 * placed) for placed in range(1, 5))
    prices = {
        "op/0": Price(charges=product, grid=Grid(ctas=6, cluster=2)),
        "op/1": Price(launch_s=1e-6, copies=True, grid=Grid(ctas=4, whole_sm=True), copy_caps=caps, charges=copy),
        "op/2": Price(charges=product, grid=Grid(ctas=1)),
    }
    return Schedule(plan=plan(*ops), machine=Machine(prices=prices, sm_count=SMS))


@law(crowds(), mutants={"late-blocks-add-nothing": late_blocks(), "caps-of-one-block": None})
def a_copy_moves_at_the_rate_of_its_placed_blocks_or_something_it_uses_is_full(case: Schedule) -> None:
    """Work conservation with SMs: bytes pass whenever a block is placed. One copy kernel at a time holds SMs."""
    log: Log = []
    spans, _ = case.run(log)
    for name, span in spans.items():
        price = case.price(name)
        if not price.copy_caps:
            continue
        begin_ns = span.start_ns + ns(price.latency_s)
        for usage in (usage for now_ns, usage in log if begin_ns <= now_ns < span.end_ns):
            alone, beside = price.copy_caps[round(usage["sms_copy"]) - 1]
            full = any(usage[used] >= case.machine.rates[used] * (1 - 1e-9) for used in price.charges[0].uses)
            assert usage["h2d"] <= alone * (1 + 1e-9)
            assert full or usage["h2d"] >= beside * (1 - 1e-9), f"{name}: {usage['h2d']:g} of {beside:g}"


def waves_by_hand(grid: Grid, free_tpcs: int, half_tpcs: int) -> int:
    """Rounds of what fits: clusters of two on whole TPCs, lone blocks on any SM."""
    if grid.cluster == PAIR:
        return math.ceil(math.ceil(grid.ctas / PAIR) / (free_tpcs * grid.per_sm))
    return math.ceil(grid.ctas / ((free_tpcs * PAIR + half_tpcs) * grid.per_sm))


def product_and_copy(grid: Grid, share: float, flops: int, copying: tuple[Grid, Caps], size: int) -> Schedule:
    """A product, and beside it from the start a copy by a kernel with these rates."""
    copy, caps = copying
    ops = (Op(kind="op", layer=0, lane=Lane.H2D), Op(kind="op", layer=1))
    prices = {
        "op/0": Price(
            copies=True, grid=copy, copy_caps=caps, ctas=copy.ctas,
            charges=(Charge(label=LINK, size=size, uses={"h2d": 1.0}, cap=caps[-1][0]),),
        ),
        "op/1": Price(
            grid=grid, wave_share=share, charges=(Charge(label=FLOPS, size=flops, uses={"flops": 1.0}, cap=1e14),)
        ),
    }  # fmt: skip
    return Schedule(plan=plan(*ops), machine=Machine(prices=prices, sm_count=SMS))


@law(st.tuples(grids(SMS), st.sampled_from([0.25, 1.0]), st.integers(1, 3), st.integers(10**7, 10**9)),
     mutants=["waves-help", "waves-forgotten", "a-copy-cta-holds-no-sm"])  # fmt: skip
def a_product_beside_copies_takes_the_waves_counted_by_hand(case: tuple[Grid, float, int, int]) -> None:
    """Lone copy blocks first: each leaves half a TPC. The copy outlasts the product."""
    grid, share, ctas, flops = case
    copy = Grid(ctas=ctas, whole_sm=True)
    caps = tuple((1e9, 1e9) for _ in range(ctas))
    spans, _ = product_and_copy(grid, share, flops, (copy, caps), 10**9).run()
    more = waves_by_hand(grid, SMS // PAIR - ctas, ctas) - waves_by_hand(grid, SMS // PAIR, 0)
    want = flops / 1e14 * (1 + more * share) * 1e9
    assert want - 1e-3 <= spans["op/1"].end_ns < want + 1


beside_a_product = st.tuples(copy_grids(), st.integers(10**7, 10**9), st.integers(1, 10**6))


@law(beside_a_product, mutants=["copies-like-company-by-hand", "caps-of-one-block"])
def a_copy_runs_at_its_rate_beside_compute_and_at_the_other_alone(case: tuple[tuple[Grid, Caps], int, int]) -> None:
    (_, caps), flops, size = case
    spans, _ = product_and_copy(Grid(ctas=1), 0.0, flops, case[0], size).run()
    alone, beside = caps[-1]
    busy_s = flops / 1e14
    want = size / beside if size <= beside * busy_s else busy_s + (size - beside * busy_s) / alone
    assert want * 1e9 - 1 <= spans["op/0"].end_ns < want * 1e9 + 2


@law(crowds(), mutants=["queue-forgotten", "queue-in-reverse"])
def a_queue_serves_one_at_a_time_in_order_of_readiness(case: Schedule) -> None:
    spans, _ = case.run()
    order = {op.name: i for i, op in enumerate(case.plan)}
    queued = []
    for op in case.plan:
        price = case.price(op.name)
        if price.queue:
            before = [spans[name].end_ns for name in case.plan.predecessors(op) if name in spans]
            queued.append((max(before, default=0) + ns(price.launch_s), order[op.name], spans[op.name]))
    free_ns = 0
    for ready, _, span in sorted(queued, key=lambda entry: entry[:2]):
        assert span.start_ns == max(ready, free_ns), f"{span.name}: ready at {ready} ns, free at {free_ns} ns"
        free_ns = span.end_ns


@law(crowds(hosts=True), mutants=["host-issues-at-once", "host-never-waits"], examples=40)
def an_operation_starts_when_the_host_has_issued_it_and_the_host_waits_where_it_must(case: Schedule) -> None:
    spans, _ = case.run()
    host_ns = 0
    for op in case.plan:
        price = case.price(op.name)
        if price.host_waits:
            host_ns = max(host_ns, *(spans[name].end_ns for name in op.after if name in spans), 0)
        host_ns += ns(price.issue_s)
        issued_ns = host_ns
        host_ns += ns(price.then_s)
        if op.name not in spans:
            continue
        before = max((spans[name].end_ns for name in case.plan.predecessors(op) if name in spans), default=0)
        earliest = max(before, issued_ns) + ns(price.launch_s)
        start = spans[op.name].start_ns
        # SMs and queues may make it later.
        assert start == earliest if price.grid is None and not price.queue else start >= earliest, op.name


anything = crowds() | crowds(hosts=True) | schedules()


@law(anything, mutants=["ahead-by-a-tick", "ahead-without-looking-beside"], examples=60)
def running_ahead_changes_nothing(case: Schedule) -> None:
    assert case.run(coalesce=True) == case.run(coalesce=False)


@law(st.tuples(crowds(), st.integers(2, 3)), mutants=["host-memory-of-ones-own"])
def equal_machines_in_lockstep_each_get_their_part_of_what_they_share(case: tuple[Schedule, int]) -> None:
    once, count = case
    # Copies draw on host memory, which is short enough to matter.
    host = {**once.machine.rates, "host": 2e10}

    def shares(price: Price) -> Price:
        charges = tuple(attrs.evolve(c, uses={**c.uses, "host": 1.0}) if c.label == LINK else c for c in price.charges)
        return attrs.evolve(price, charges=charges)

    sharing = once.repriced(shares)
    sharing = attrs.evolve(sharing, machine=attrs.evolve(sharing.machine, rates=host, shares=frozenset({"host"})))
    each, long_ns = sharing.run(replicas=count)
    split = run.run_steps(sharing.plan, [facts()], no_work, sharing.machine, replicas=count)
    assert split.step_ns == (long_ns,)
    assert {span.name: (span.start_ns, span.end_ns) for span in split.timeline.spans} == {
        name: (span.start_ns, span.end_ns) for name, span in each.items()
    }
    part = attrs.evolve(sharing, machine=attrs.evolve(sharing.machine, rates={**host, "host": 2e10 / count}))
    assert part.run()[1] == long_ns
