"""Laws of predictions: limits in which two plans are one, what may never get faster, and what never gets a time."""

from __future__ import annotations

import itertools
from typing import ClassVar

import attrs
import numpy as np
import pytest
from hypothesis import strategies as st

from sparda_core.errors import CapacityError
from sparda_core.kernels.work_table import work_of
from sparda_core.plan import Kind, Lane, Op
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.selectors.declaration import SELECT
from sparda_core.selectors.query import Query
from sparda_core.simulator import predict as predicting
from sparda_core.simulator import run
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.work import Work
from tests.simulator.laws.law import law
from tests.simulator.laws.points import ENGINES, OFFLOADING, PAIRS, SHAPE, Point, points, scaled

#: Engines that hold no SMs, so that a copy takes nothing from compute but bytes.
WITHOUT_SMS = ("copy-engine", "cpu-gather")
NOTHING = Work(launches=0)


def without_gaps(profile: GpuProfile) -> GpuProfile:
    none = profile.launch.graph_s.with_value(0.0, "a law's")
    return attrs.evolve(profile, launch=attrs.evolve(profile.launch, graph_s=none))


@law(points(pairs=OFFLOADING), mutants=["bytes-of-hits", "copy-of-nothing-pays-its-latency"])
def no_misses_equal_no_copies(point: Point) -> None:
    """A copy without misses is a launch; with launches at zero the same plan without copies takes as long."""
    quiet = attrs.evolve(point, churn=0.0)
    with_copies = quiet.predict(turn=without_gaps)
    without = quiet.predict(turn=without_gaps, rework=lambda op, work: NOTHING if op.kind == Kind.FETCH else work)
    if with_copies.feasible:
        assert with_copies.step_s == without.step_s


@law(points(pairs=OFFLOADING), mutants=["every-copy-is-launched"])
def copies_and_diffs_of_no_work_leave_the_step_of_a_resident_cache(point: Point) -> None:
    def as_resident(op: Op, work: Work) -> Work:
        # A resident cache has no diff and no copy, and writes nothing through to the host; what the diff would choose
        # along is chosen in a launch of its own, what an append of its own would store is stored along.
        work = NOTHING if op.kind in (Kind.DIFF, Kind.FETCH) else work
        if op.kind == SELECT:
            return attrs.evolve(work, launches=1)
        return attrs.evolve(work, d2h_bytes=0.0, pieces=0, launches=0) if op.kind == Kind.APPEND else work

    resident = attrs.evolve(point, runtime="resident").predict()
    offloaded = point.predict(rework=as_resident)
    if resident.feasible and offloaded.feasible:
        compute = [span for span in offloaded.timeline.spans if span.kind != Kind.DIFF]
        assert offloaded.step_s == resident.step_s
        assert [(s.name, s.start_ns, s.end_ns) for s in compute] == [
            (s.name, s.start_ns, s.end_ns) for s in resident.timeline.spans
        ]


@attrs.frozen(kw_only=True)
class EarlyAtAnyLead(OffloadPrefetch):
    """Writes what prefetch would be for a selector that knows nothing early."""

    min_lead: ClassVar[int] = 0


@law(points(pairs=[("query", "offload-sync")], engines=ENGINES), mutants=["prefetch-before-selection"])
def prefetch_with_lead_0_is_sync(point: Point) -> None:
    """Up to the append of the new token, which alone is left to hide behind: here it takes no time."""

    def no_append(op: Op, work: Work) -> Work:
        return NOTHING if op.kind == Kind.APPEND else work

    early, late = (
        attrs.evolve(point, selector=Query(), runtime=runtime(engine=point.engine))
        for runtime in (EarlyAtAnyLead, OffloadSync)
    )
    one, other = (made.predict(rework=no_append) for made in (early, late))
    assert one.feasible == other.feasible
    if one.feasible:
        assert one.step_s == other.step_s


@law(st.tuples(points(engines=ENGINES), st.integers(1, 131072)), mutants=["entries-of-one-context"])
def a_longer_context_never_shortens_a_step(case: tuple[Point, int]) -> None:
    point, other = case
    short, long = sorted((point.context, other))
    one, more = (attrs.evolve(point, context=tokens).predict() for tokens in (short, long))
    if more.feasible:
        assert one.step_s <= more.step_s + 2e-9 * SLACK


@law(st.tuples(points(engines=ENGINES), st.integers(1, 64)), mutants=["batch-for-free"])
def more_rows_never_raise_the_tokens_a_second_of_each(case: tuple[Point, int]) -> None:
    """With attention in one launch: up to 16 rows its pieces may be added up in a second, which more rows save.

    Up to two hundredths: the library takes other tiles with more rows, and some are faster (an H200's output product
    at 56 rows, by 2 us of 13 a layer), which the profile's curves over rows say.
    """

    def one_launch(op: Op, work: Work) -> Work:
        return attrs.evolve(work, launches=1) if op.kind == Kind.ATTEND else work

    point, other = case
    few, many = sorted((point.batch, other))
    one, more = (attrs.evolve(point, batch=rows).predict(rework=one_launch) for rows in (few, many))
    if more.feasible:
        assert one.step_s <= 1.02 * more.step_s + 2e-9 * SLACK


SHARES = st.sampled_from([0.0, 0.03, 0.3, 1.0])


@law(st.tuples(points(pairs=OFFLOADING, engines=ENGINES), SHARES), mutants=["bytes-of-hits"])
def more_misses_never_shorten_a_step_nor_its_transfer(case: tuple[Point, float]) -> None:
    point, other = case
    few, many = sorted((point.churn, other))
    one, more = (attrs.evolve(point, churn=churn).predict() for churn in (few, many))
    if one.feasible:
        assert one.step_s <= more.step_s + 2e-9 * SLACK
        assert one.transfer_s <= more.transfer_s + 2e-9 * SLACK


RESIDENT = [pair for pair in PAIRS if pair[1] == "resident"]


@law(st.tuples(points(pairs=RESIDENT), st.floats(1, 8)), mutants=["hbm-rate-inverted"])
def faster_device_memory_never_slows_a_step_without_copies(case: tuple[Point, float]) -> None:
    point, by = case
    once = point.predict()
    for names in (("hbm_bytes_per_s",), ("hbm_bytes_per_s", "kernel_bytes_per_s")):
        if once.feasible:
            assert point.predict(turn=scaled(by, *names)).step_s <= once.step_s + 2e-9 * SLACK


@law(st.tuples(points(pairs=OFFLOADING, engines=WITHOUT_SMS), st.floats(0.1, 1)), mutants=["gpu-link-inverted"])
def a_faster_link_never_slows_a_step_whose_copies_hold_no_sms(case: tuple[Point, float]) -> None:
    point, by = case
    once = point.predict()
    slower = point.predict(turn=lambda profile: profile.with_link(profile.link.h2d_bytes_per_s.value * by))
    if once.feasible:
        assert once.step_s <= slower.step_s + 2e-9 * SLACK


gathers = st.tuples(points(pairs=OFFLOADING), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.1, 1))


@law(gathers, mutants=["gpu-link-inverted"])
def a_faster_link_slows_a_step_whose_copies_hold_sms_by_two_thousandths_at_most(
    case: tuple[Point, int, float],
) -> None:
    """Anomalies there are: a copy that ends sooner lets the next one take SMs at a worse moment (docs/laws.md)."""
    point, ctas, by = case
    gather = attrs.evolve(point, ctas=ctas)
    once = gather.predict()
    slower = gather.predict(turn=lambda profile: profile.with_link(profile.link.h2d_bytes_per_s.value * by))
    if once.feasible:
        assert once.step_s <= slower.step_s * 1.002


uneven = st.lists(st.integers(0, 60), min_size=SHAPE.layers, max_size=SHAPE.layers)


@law(st.tuples(points(engines=ENGINES), st.lists(uneven, min_size=1, max_size=3)), mutants=["layers-taken-alike"])
def an_operation_costs_what_the_profile_says_of_its_own_work(case: tuple[Point, list[list[int]]]) -> None:
    """Whatever is remembered of other layers and other steps, whose misses differ."""
    point, steps = case
    _, selector, plan = point.parts()
    context, profile = point.work_context().under(plan), point.machine()
    simulator = run.Simulator(plan, predicting.kernel_work(plan, context, selector), profile)
    for misses in steps:
        facts = point.facts(plan)
        facts = attrs.evolve(facts, misses=np.minimum(facts.selected, np.array(misses)[:, None, None]))
        for op, price in zip(plan, simulator.prices(facts), strict=True):
            work = work_of(op, facts, context, selector)
            if work.h2d_bytes and op.lane != Lane.COMPUTE:
                work = attrs.evolve(work, sms=point.ctas if point.engine == "uva" else 0)
            assert price == profile.price(op, work, plan=plan, tokens=facts.rows), op.name


#: Operations of a step, each of which may be rounded up by a tick or two.
SLACK = 20 * SHAPE.layers


TIMES = ("step_s", "tokens_per_s", "exposed_s", "transfer_s", "hidden_s", "by_kind", "spent", "bound", "timeline")


@st.composite
def large(draw: st.DrawFn) -> Point:
    point = draw(points())
    return attrs.evolve(point, batch=draw(st.integers(1, 3000)), context=draw(st.sampled_from([1, 4096, 131072])))


@law(large(), mutants={"capacity-ignored": Point(runtime="resident", batch=3000, context=131072),
                       "host-memory-ignored": Point(batch=600, context=131072)})  # fmt: skip
def what_does_not_fit_never_gets_a_time(point: Point) -> None:
    got = point.predict()
    _, _, plan = point.parts()
    facts = point.facts(plan)
    need = got.need
    assert need.device >= SHAPE.weights * 2
    profile = point.machine()
    fits = need.device <= profile.device_bytes and need.host <= (profile.host_bytes or 0)
    assert got.feasible == fits
    # Every block of every row lies somewhere: on the device or on the host.
    block = 2 * 64 * SHAPE.head_dim * 2
    blocks = facts.rows * -(-point.context // 64) * SHAPE.kv_heads * SHAPE.layers
    assert need.resident + need.host >= blocks * block
    if fits:
        assert got.step_s > 0
        return
    for name in TIMES:
        with pytest.raises(CapacityError):
            getattr(got, name)


@law(points(engines=ENGINES), mutants=["lane-runs-two-at-once"])
def each_lane_runs_one_operation_at_a_time_and_every_operation_once(point: Point) -> None:
    got = point.predict()
    _, _, plan = point.parts()
    if not got.feasible:
        return
    for lane in Lane:
        spans = got.timeline.lane(lane)
        names = [op.name for op in plan.lane(lane)]
        assert [span.name for span in spans] == [name for name in names if name in {span.name for span in spans}]
        for before, after in itertools.pairwise(spans):
            assert before.end_ns <= after.start_ns
    assert {op.name for op in plan.lane(Lane.COMPUTE)} <= {span.name for span in got.timeline.spans}
