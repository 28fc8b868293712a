"""The reference release's plans: what is launched, in what order, and what it moves."""

from __future__ import annotations

import attrs
import pytest

from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.published.cells import SHAPE, SPEC, WORK
from sparda_core.published.kernels import WORK as KERNELS
from sparda_core.published.kernels import Paces
from sparda_core.published.schedule import ReferenceRuntime, host_launches, work_of
from sparda_core.published.table import BATCHES, CONTEXT, Mode, cells
from sparda_core.work import Work

MISS_BYTES = 32 * 1024


def facts(batch: int, churn: float = 0.1) -> StepFacts:
    return steady_facts(shape=SHAPE, spec=SPEC, batch=batch, context=CONTEXT, churn=churn)


def written(mode: Mode) -> StepPlan:
    return ReferenceRuntime(mode=mode).decode_plan(SHAPE)


def works(mode: Mode, batch: int, churn: float = 0.1) -> dict[str, Work]:
    work, met = work_of(ReferenceRuntime(mode=mode), WORK, Paces()), facts(batch, churn)
    return {op.name: work(op, met) for op in written(mode)}


def place(plan: StepPlan, name: str) -> int:
    return [op.name for op in plan].index(name)


def test_the_table_has_fourteen_times_four_cells_out_of_memory_and_two_blanks() -> None:
    every = cells()
    timed = [cell for cell in every if cell.tokens_per_s is not None]
    full = [cell for cell in every if cell.out_of_memory]
    assert (len(every), len(timed), len(full)) == (20, 14, 4)
    assert max(c.tokens_per_s or 0 for c in timed) / 189.5 == pytest.approx(5.28, abs=0.005)


@pytest.mark.parametrize("mode", Mode)
def test_every_kernel_of_a_plan_has_its_work_and_every_layer_attends_once(mode: Mode) -> None:
    plan = written(mode)
    assert {op.kind for op in plan} <= KERNELS.keys()
    assert [op.layer for op in plan if op.kind == Kind.ATTEND] == list(range(SHAPE.layers))
    assert plan.resident_layers == {Mode.RESIDENT: 32, Mode.SYNC: 0}.get(mode, 1)


def test_every_kernel_that_has_a_work_is_launched_by_some_mode() -> None:
    assert {op.kind for mode in Mode for op in written(mode)} == KERNELS.keys()


def test_a_layer_with_prefetch_is_26_kernels_a_graph_a_copy_kernel_and_events() -> None:
    launched = works(Mode.PREFETCH, 4)
    of_layer = {op.name: launched[op.name].launches for op in written(Mode.PREFETCH) if op.source == 7}
    assert sum(of_layer.values()) == 26 + 1 + 1 + 1
    assert sum(name.startswith("select-") for name in of_layer) == 3
    assert sum(of_layer[name] for name in of_layer if name.startswith("select-")) == 1


@pytest.mark.parametrize("mode", Mode)
def test_a_step_is_about_nine_hundred_launches(mode: Mode) -> None:
    plan = written(mode)
    launches = host_launches(plan, work_of(ReferenceRuntime(mode=mode), WORK, Paces()), facts(4))
    assert 880 <= launches <= 950


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("mode", "first"), [(Mode.SYNC, 0), (Mode.NO_PREFETCH, 1), (Mode.PREFETCH, 1)])
def test_a_miss_is_32_kib_on_the_link_and_resident_layers_move_none(batch: int, mode: Mode, first: int) -> None:
    moved = sum(work.h2d_bytes for work in works(mode, batch).values())
    assert moved == pytest.approx(MISS_BYTES * facts(batch).misses[first:].sum())


def test_without_offload_changed_blocks_are_copied_on_the_device() -> None:
    every = works(Mode.RESIDENT, 4)
    assert not sum(work.h2d_bytes for work in every.values())
    copied = sum(work.hbm_bytes for name, work in every.items() if name.startswith("copy-"))
    assert copied == pytest.approx(2 * MISS_BYTES * facts(4).misses.sum())


def test_no_misses_move_nothing() -> None:
    assert not sum(work.h2d_bytes for work in works(Mode.PREFETCH, 8, churn=0.0).values())


@pytest.mark.parametrize("mode", Mode)
def test_the_products_read_every_weight_but_the_embedding_table_once(mode: Mode) -> None:
    every = works(mode, 4)
    products = {Kind.OUTPUT, Kind.MLP, Kind.HEAD, "qkv", "qkv-forecast", "mlp-down"}
    read = sum(every[op.name].hbm_bytes for op in written(mode) if op.kind in products)
    forecasts = SHAPE.layers * SHAPE.forecast_weights if mode in (Mode.PREFETCH, Mode.NO_PREFETCH) else 0
    weights = 2 * (SHAPE.weights - SHAPE.vocab * SHAPE.hidden + forecasts)
    assert weights < read < 1.01 * weights


def test_the_copy_of_a_layer_is_launched_after_all_kernels_of_the_layer_before() -> None:
    plan = written(Mode.PREFETCH)
    for layer in range(1, SHAPE.layers):
        before = [place(plan, op.name) for op in plan if op.source == layer - 1 and op.lane == Lane.COMPUTE]
        here = [place(plan, op.name) for op in plan if op.source == layer and op.lane == Lane.COMPUTE]
        assert max(before) < place(plan, f"fetch-walk/{layer}") < place(plan, f"{Kind.FETCH}/{layer}") < min(here)


def test_attention_waits_for_its_copy_and_the_copy_for_the_list() -> None:
    plan = written(Mode.PREFETCH)
    assert plan[f"{Kind.ATTEND}/9"].after == (f"{Kind.FETCH}/9",)
    assert plan["fetch-walk/9"].after == ("diff-map/9",)
    assert plan[f"{Kind.ATTEND}/0"].after == ()


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.NO_PREFETCH])
def test_in_line_nothing_overlaps_the_copy(mode: Mode) -> None:
    plan = written(mode)
    for op in plan.lane(Lane.H2D):
        at = place(plan, op.name)
        computed = [other.name for other in plan.ops[:at] if other.lane == Lane.COMPUTE][-1]
        assert computed == f"diff-map/{op.layer}"
        assert plan[f"{Kind.ATTEND}/{op.layer}"].after == (f"fetch-ramp/{op.layer}",)


def test_the_copy_kernel_has_32_ctas_from_batch_32_on() -> None:
    assert [works(Mode.PREFETCH, batch)["fetch/3"].sms for batch in BATCHES] == [16, 16, 16, 32, 32]
    assert works(Mode.PREFETCH, 8)["fetch/3"].in_flight_bytes == 16384


def alone_s(work: Work, bytes_per_s: float) -> float:
    rate = min(bytes_per_s, work.ctas * work.cta_bytes_per_s) if work.cta_bytes_per_s else bytes_per_s
    return work.hbm_bytes / rate


def test_query_scoring_takes_a_third_of_a_millisecond_whatever_the_batch() -> None:
    times = [alone_s(works(Mode.SYNC, batch)["score/3"], 2.7e12) for batch in BATCHES]
    assert max(times) == pytest.approx(min(times))
    assert 0.3e-3 < times[0] < 0.4e-3


def test_pooling_slows_with_the_batch_and_stays_within_its_estimate() -> None:
    times = [alone_s(works(Mode.PREFETCH, batch)["select-pool/3"], 2.7e12) for batch in BATCHES]
    assert times == sorted(times)
    assert 0.1e-3 < times[-1] < 0.3e-3


# Microseconds of the release's copy kernel on an H200, one layer: (batch, context, miss share, CTAs) -> time with
# about 12 us of event and launch around it.
MEASURED_US = {
    (8, 131072, 0.03, 16): 115, (8, 131072, 0.10, 16): 218, (16, 131072, 0.03, 16): 165, (16, 131072, 0.10, 16): 326,
    (16, 131072, 0.20, 16): 451, (28, 65536, 0.10, 16): 492, (64, 32768, 0.03, 16): 512, (64, 32768, 0.10, 16): 926,
    (64, 32768, 0.20, 16): 1655, (8, 131072, 0.03, 32): 85, (8, 131072, 0.10, 32): 167, (16, 131072, 0.03, 32): 125,
    (16, 131072, 0.10, 32): 263, (16, 131072, 0.20, 32): 442, (28, 65536, 0.10, 32): 421, (64, 32768, 0.03, 32): 314,
    (64, 32768, 0.10, 32): 895, (64, 32768, 0.20, 32): 1651,
}  # fmt: skip


def copy_us(batch: int, churn: float, ctas: int) -> float:
    """Walk, one round trip, bytes at the 51 GB/s that an H200's kernels reach, and what is around a launch."""

    @attrs.frozen
    class Fixed(ReferenceRuntime):
        def copy_ctas(self, rows: int) -> int:
            return ctas

    work, met = work_of(Fixed(mode=Mode.PREFETCH), WORK, Paces()), facts(batch, churn)
    walk, fetch = (work(Op(kind=kind, layer=3), met) for kind in ("fetch-walk", Kind.FETCH))
    return 12 + 1e6 * (alone_s(walk, 3.85e12) + 2.83e-6 + fetch.h2d_bytes / 51e9)


def test_the_copy_kernel_takes_what_it_took_on_an_h200() -> None:
    errors = {
        point: copy_us(batch, churn, ctas) / us - 1
        for (point, us) in MEASURED_US.items()
        for (batch, _, churn, ctas) in [point]
    }
    # At small batches the slowest thread block, which met most misses, takes longer than the mean one: not modelled.
    assert all(-0.4 < error < 0.2 for error in errors.values()), errors
    assert all(abs(error) < 0.21 for (batch, *_), error in errors.items() if batch >= 16), errors
