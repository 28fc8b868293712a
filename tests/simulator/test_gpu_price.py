"""What a GPU charges: grids, copy rates by CTAs placed, queues, launch modes, and the bounds of what was calibrated."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ProfileError
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.segments import AT_ONCE
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.launches import default_launches
from sparda_core.simulator.layout import layout_of
from sparda_core.simulator.profile import HBM, Grid, Price
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.run import run_step
from sparda_core.work import Work
from tests.simulator.beside import h200 as by_hand
from tests.simulator.scenes import by_kind, facts, gpu, plan

FETCH = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D)
STAGE = Op(kind=Kind.STAGE, layer=0, lane=Lane.H2D)
SPILL = Op(kind="spill", layer=0, lane=Lane.D2H)
MLP = Op(kind=Kind.MLP, layer=0)
BLOCKS = Work(h2d_bytes=100 * 32768, hbm_bytes=100 * 32768, pieces=100, sms=2)


def h200(**settings: Any) -> GpuProfile:
    return attrs.evolve(by_hand(), **settings)


def priced(op: Op, work: Work, *, engine: str = "uva", profile: GpuProfile | None = None, tokens: int = 16) -> Price:
    return (profile or h200()).price(op, work, plan=plan(op, engine=engine), tokens=tokens)


def hbm_cap(price: Price) -> float:
    return next(charge.cap for charge in price.charges if charge.label == HBM)


def test_a_product_has_the_librarys_grid_and_a_kernel_of_ours_its_own() -> None:
    product = priced(MLP, Work(hbm_bytes=1e6, launches=4))
    assert (product.grid, product.kernels) == (Grid(ctas=128, cluster=2), 4)
    assert product.wave_share == 0.1684
    ours = priced(MLP, Work(hbm_bytes=1e6, ctas=300, ctas_per_sm=2))
    assert ours.grid == Grid(ctas=300, per_sm=2)
    assert ours.wave_share == 0.1684 / 2
    assert priced(MLP, Work()).grid is None


def test_the_cost_of_a_wave_is_interpolated_over_tokens_and_spread_over_waves() -> None:
    shares = [priced(MLP, Work(hbm_bytes=1e6), tokens=tokens).wave_share for tokens in (1, 16, 32, 64, 128, 256)]
    assert shares == sorted(shares)
    assert shares[2] == pytest.approx((0.1684 + 0.1992) / 2)
    chunk = h200().price(MLP, Work(flops=1e12), plan=attrs.evolve(plan(MLP), phase=Phase.PREFILL), tokens=2048)
    assert chunk.grid == Grid(ctas=1024, cluster=2)
    assert chunk.wave_share == 0.9114 / 8


def test_a_kernel_at_its_ceiling_leaves_no_device_memory_to_others() -> None:
    price = priced(MLP, Work(hbm_bytes=1e6))
    (charge,) = price.charges
    assert charge.cap * charge.uses["hbm"] == pytest.approx(h200().capacity()["hbm"])


def test_a_small_grid_draws_what_its_thread_blocks_can() -> None:
    assert hbm_cap(priced(MLP, Work(hbm_bytes=1e6, ctas=16, cta_bytes_per_s=30e9))) == 480e9
    assert hbm_cap(priced(MLP, Work(hbm_bytes=1e6, ctas=132, cta_bytes_per_s=30e9))) == 3.85e12
    assert hbm_cap(priced(MLP, Work(hbm_bytes=1e6, ctas=16))) == 3.85e12


def test_a_gather_has_a_rate_for_every_number_of_ctas_placed() -> None:
    price = priced(FETCH, attrs.evolve(BLOCKS, sms=4))
    assert price.grid == Grid(ctas=4, whole_sm=True)
    alone, beside = zip(*price.copy_caps, strict=True)
    assert alone == pytest.approx([37.5e9, 50.7e9, 50.7e9, 50.7e9], rel=0.01)
    assert beside == pytest.approx([31.8e9, 45.5e9, 48.9e9, 49.9e9], rel=0.01)
    assert price.late_caps == pytest.approx([22.8e9, 35.1e9, 41.1e9, 44.3e9], rel=0.01)
    assert all(late < first for late, first in zip(price.late_caps, beside, strict=True))
    assert price.charges[0].cap == alone[-1]


def test_a_list_that_was_copied_before_moves_faster_and_starts_sooner() -> None:
    once, again = (priced(FETCH, attrs.evolve(BLOCKS, sms=1, repeated=repeated)) for repeated in (False, True))
    assert again.copy_caps[0][0] == pytest.approx(45e9, rel=0.02)
    assert again.copy_caps > once.copy_caps
    assert (again.latency_s, once.latency_s) == (2.2e-6, 2.83e-6)


def test_a_gather_without_thread_blocks_is_refused() -> None:
    with pytest.raises(ProfileError, match="op 'fetch/0' moves blocks by engine 'uva' but holds no SMs"):
        priced(FETCH, attrs.evolve(BLOCKS, sms=0), profile=h200(extrapolate=True))


@given(
    in_flight=st.floats(16384, 131072), more=st.floats(1, 4), cluster=st.sampled_from([1, 2, 4]),
    piece=st.sampled_from([16384, 24000, 32768, 65536]), repeated=st.booleans(),
)  # fmt: skip
def test_a_copy_is_never_slower_with_more_ctas_or_bytes_in_flight_or_without_compute(
    in_flight: float, more: float, cluster: int, piece: int, *, repeated: bool
) -> None:
    work = Work(h2d_bytes=piece, pieces=1, sms=32, cluster=cluster, in_flight_bytes=in_flight, repeated=repeated)
    caps, deeper = (
        priced(FETCH, attrs.evolve(work, in_flight_bytes=bytes_), profile=h200(extrapolate=True)).copy_caps
        for bytes_ in (in_flight, in_flight * more)
    )
    for column in (0, 1):
        rates = [cap[column] for cap in caps]
        assert rates == sorted(rates)
        assert all(a[column] <= b[column] * (1 + 1e-12) for a, b in zip(caps, deeper, strict=True))
    assert all(beside <= alone for alone, beside in caps)


def test_a_copy_engine_serves_one_call_at_a_time_each_way() -> None:
    up = priced(FETCH, BLOCKS, engine="copy-engine")
    down = priced(SPILL, Work(d2h_bytes=1e6, pieces=10), engine="copy-engine")
    assert (up.queue, down.queue) == ("h2d engine", "d2h engine")
    assert (up.grid, up.copy_caps, up.ctas) == (None, (), 0)
    assert up.latency_s == down.latency_s == 12e-6
    assert up.charges[0].cap == pytest.approx(28.9e9)
    assert priced(FETCH, BLOCKS).queue == priced(SPILL, Work(d2h_bytes=1e6, pieces=10)).queue == ""


def test_the_host_gathers_a_list_before_it_issues_the_copy_and_what_is_known_beforehand_as_it_is_copied() -> None:
    cut = priced(FETCH, BLOCKS, engine="cpu-gather")
    assert cut.issue_s == pytest.approx(22e-6 + 30e-6 + BLOCKS.h2d_bytes / 20e9)
    assert (cut.charges[0].uses["host"], cut.charges[0].cap) == (1, 55.4e9)
    staged = priced(STAGE, BLOCKS, engine="cpu-gather")
    assert staged.charges[0].uses["host"] == 2.3
    assert staged.charges[0].cap == pytest.approx(1 / (1 / 20e9 + 1 / 55.4e9))


def test_gpus_of_one_host_gather_at_the_same_time() -> None:
    """A byte gathered crosses memory 1.3 times, all of them at once."""
    memory = h200().memory.host_bytes_per_s.value
    rates = [
        BLOCKS.h2d_bytes / (priced(FETCH, BLOCKS, engine="cpu-gather", profile=h200(gpus=gpus)).issue_s - 52e-6)
        for gpus in (1, 8)
    ]
    assert rates == pytest.approx([min(20e9, memory / 1.3), memory / (1.3 * 8)])


@pytest.mark.parametrize("engine", ["copy-engine", "cpu-gather"])
def test_one_graph_is_refused_where_a_list_must_reach_the_host(engine: str) -> None:
    made = plan(FETCH, engine=engine)
    with pytest.raises(ProfileError, match="one graph cannot do; use launches='segments' or"):
        h200(launches="graph").check_engine(made)
    h200(launches="graph").check_engine(plan(MLP, engine=engine))
    h200(launches="graph").check_engine(plan(STAGE, engine=engine))
    for mode in ("segments", "eager", None):
        h200(launches=mode).check_engine(made)


def test_launches_that_nobody_chose_are_what_the_engine_allows() -> None:
    assert [default_launches(engine) for engine in GpuProfile.engines] == ["graph", "segments", "segments"]
    assert default_launches("uva", Phase.PREFILL) == "eager"
    assert h200().launches_of(plan(FETCH, engine="copy-engine")) == "segments"
    assert h200(launches="eager").launches_of(plan(FETCH)) == "eager"


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ProfileError, match="launches='graphs' must be one of: graph, segments, eager"):
        h200(launches="graphs")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ProfileError, match=r"gpus=.* must be an integer >= 1"):
            h200(gpus=wrong)


def test_a_cut_makes_the_host_wait_for_the_list_and_launch_the_next_segment() -> None:
    cut = priced(FETCH, BLOCKS, engine="copy-engine")
    assert cut.host_waits
    assert cut.issue_s == pytest.approx(22e-6 + 6e-6)
    # The device has a segment once it is launched; the next cut comes after all that the host does for it.
    assert (cut.then_s, cut.before_s) == (0, 10e-6)
    # A list of nothing is waited for, too.
    assert priced(FETCH, Work(), engine="copy-engine").issue_s == 22e-6
    # Staged blocks are known beforehand, and a gather reads its list on the device.
    assert not priced(STAGE, BLOCKS, engine="copy-engine").host_waits
    assert not priced(FETCH, BLOCKS).host_waits
    assert priced(MLP, Work(hbm_bytes=1.0, launches=4), engine="copy-engine").issue_s == 0


def test_a_diff_whose_list_goes_to_the_host_takes_the_compute_lane_for_what_a_cut_does() -> None:
    machine, diff, work = h200(), Op(kind=Kind.DIFF, layer=0), Work(hbm_bytes=1e4, ctas=32)
    cut_s = machine.launch.list_s.with_value(4e-6, "test")
    cuts = attrs.evolve(machine, launch=attrs.evolve(machine.launch, cut_s=cut_s))
    for engine, more in (("copy-engine", 4e-6), ("cpu-gather", 4e-6), ("uva", 0.0)):
        plain, cut = (priced(diff, work, engine=engine, profile=profile) for profile in (machine, cuts))
        assert cut.latency_s == pytest.approx(plain.latency_s + more)
    # Kernels that the host launches one by one are no segments, and no other kernel tells a list.
    eager, at_once = attrs.evolve(cuts, launches="eager"), attrs.evolve(machine, launches="eager")
    assert priced(diff, work, engine="copy-engine", profile=eager) == priced(
        diff, work, engine="copy-engine", profile=at_once
    )
    assert priced(MLP, work, engine="copy-engine", profile=cuts) == priced(MLP, work, engine="copy-engine")


def test_pieces_beyond_a_first_call_are_submitted_while_those_move() -> None:
    machine, many = h200(), attrs.evolve(BLOCKS, pieces=AT_ONCE + 36)
    assert machine.copy_engine is not None
    submit = machine.launch.list_s.with_value(5e-7, "test")
    slow = attrs.evolve(machine, copy_engine=attrs.evolve(machine.copy_engine, submit_s=submit))
    cut = priced(FETCH, many, engine="copy-engine", profile=slow)
    assert cut.issue_s == pytest.approx(22e-6 + 6e-6 + AT_ONCE * 5e-7)
    assert cut.then_s == pytest.approx(36 * 5e-7)


def test_pieces_of_the_copy_engine_take_longer_beside_products_and_attention_and_bytes_do_not() -> None:
    machine = h200()
    assert machine.copy_engine is not None
    beside = attrs.evolve(machine.copy_engine, beside_s=machine.launch.list_s.with_value(3e-7, "test"))
    slow = attrs.evolve(machine, copy_engine=beside)
    rate = beside.bytes_per_s(32768, machine.link.h2d_bytes_per_s.value)
    light, product, crowd = priced(FETCH, BLOCKS, engine="copy-engine", profile=slow).crowded
    assert light == 1
    assert product == crowd == pytest.approx(1 + 3e-7 * rate / 32768)
    large = attrs.evolve(BLOCKS, pieces=1)
    assert priced(FETCH, large, engine="copy-engine", profile=slow).crowded[1] == pytest.approx(1, abs=6e-3)
    for engine in ("cpu-gather", "uva"):
        both = [priced(FETCH, BLOCKS, engine=engine, profile=profile).crowded for profile in (machine, slow)]
        assert both[0] == both[1]
    assert priced(FETCH, BLOCKS, engine="copy-engine").crowded == (1, 1, 1)


def test_eager_launches_cost_the_host_a_call_for_each_kernel() -> None:
    eager = h200(launches="eager")
    assert priced(MLP, Work(hbm_bytes=1.0, launches=4), profile=eager).issue_s == 24e-6
    cut = priced(FETCH, BLOCKS, engine="cpu-gather", profile=eager)
    assert cut.host_waits
    assert (cut.then_s, cut.before_s) == (0, 0)


def two_layers(engine: str) -> StepPlan:
    diff = Op(kind=Kind.DIFF, layer=1)
    return plan(
        diff, Op(kind=Kind.FETCH, layer=1, source=0, lane=Lane.H2D, after=(diff.name,)), Op(kind=Kind.MLP, layer=0),
        Op(kind=Kind.ATTEND, layer=1, after=("fetch/1",)), engine=engine,
    )  # fmt: skip


def test_a_segment_that_waits_for_a_copy_starts_behind_the_cut_and_one_that_does_not_runs_meanwhile() -> None:
    machine = gpu(eager_s=6e-6, step_s=10e-6)
    slow = machine.launch.list_s.with_value(20e-6, "test")
    listed = attrs.evolve(machine, launch=attrs.evolve(machine.launch, list_s=slow))
    table: dict[str, Work] = {
        Kind.DIFF: Work(hbm_bytes=5e6), Kind.FETCH: Work(h2d_bytes=50e3, pieces=1, sms=2),
        Kind.MLP: Work(hbm_bytes=5e6), Kind.ATTEND: Work(hbm_bytes=5e6),
    }  # fmt: skip
    spans = {
        span.name: (span.start_ns / 1000, span.end_ns / 1000)
        for span in run_step(two_layers("copy-engine"), facts(), by_kind(table), listed)[0]
    }
    # The diff ends at 5 us, before the host is done with its segment at 10; the list is there at 30, the copy submitted
    # at 36.
    assert spans == {"diff/1": (0, 5), "mlp/0": (5, 10), "fetch/1": (36, 37), "attend/1": (37, 42)}


def test_a_host_gather_waits_for_the_copy_that_reads_the_memory_it_gathers_into() -> None:
    """There are two pieces of it: the third gather waits for the first copy."""
    moves = [Op(kind=Kind.FETCH, layer=layer, lane=Lane.H2D, after=("embed",)) for layer in range(4)]
    made = plan(Op(kind="embed"), *moves, Op(kind=Kind.HEAD), engine="cpu-gather")
    assert listed_after(made) == [(0,), (0,), (0, 1), (0, 2)]
    assert listed_after(attrs.evolve(made, engine="copy-engine")) == [(0,)] * 4


def listed_after(made: StepPlan) -> list[tuple[int, ...]]:
    layout = layout_of(made)
    return [layout.listed[at] for at, op in enumerate(made) if op.kind == Kind.FETCH]


@pytest.mark.parametrize(
    ("op", "work", "tokens", "says"),
    [
        (MLP, Work(hbm_bytes=1.0), 257, r"tokens=257 \(calibrated 1 to 256\)"),
        (FETCH, attrs.evolve(BLOCKS, sms=33, in_flight_bytes=16384), 1, r"copy_ctas=33 \(calibrated 1 to 32\)"),
        (FETCH, attrs.evolve(BLOCKS, sms=9), 1, r"copy_bytes_in_flight=1.17965e\+06 \(calibrated 0 to 1.04858e\+06\)"),
        (FETCH, attrs.evolve(BLOCKS, in_flight_bytes=8192), 1, r"in_flight_bytes=8192 \(calibrated 16384 to 131072\)"),
        (FETCH, attrs.evolve(BLOCKS, pieces=1000), 1, r"uva_piece_bytes=3276.8 \(calibrated 16384 to 1.07374e\+09\)"),
    ],
)
def test_what_was_not_calibrated_is_refused_unless_it_is_asked_for(op: Op, work: Work, tokens: int, says: str) -> None:
    with pytest.raises(ProfileError, match=f"op '{op.name}' is outside the calibrated domain .*{says}; --extrapolate"):
        priced(op, work, tokens=tokens)
    bold = h200(extrapolate=True)
    assert priced(op, work, tokens=tokens, profile=bold).charges
    (told,) = bold.outside(op, work, plan=plan(op), tokens=tokens)
    assert told == says.replace("\\", "")


def test_a_copy_engine_is_calibrated_from_its_smallest_measured_piece() -> None:
    small = attrs.evolve(BLOCKS, pieces=400)
    with pytest.raises(ProfileError, match=r"copy_engine_piece_bytes=8192 \(calibrated 16384 to 1.07374e\+09\)"):
        priced(FETCH, small, engine="copy-engine")
    h100 = load_profile("h100-sxm")
    assert h100.price(FETCH, small, plan=plan(FETCH, engine="copy-engine"), tokens=1).charges


def test_a_chunk_of_prefill_is_calibrated_to_the_largest_product_measured() -> None:
    made = attrs.evolve(plan(MLP), phase=Phase.PREFILL)
    assert h200().price(MLP, Work(flops=1e12), plan=made, tokens=8192).charges
    with pytest.raises(ProfileError, match=r"prefill_tokens=8193 \(calibrated 1 to 8192\)"):
        h200().price(MLP, Work(flops=1e12), plan=made, tokens=8193)


def test_several_gpus_share_host_memory_and_nothing_else() -> None:
    assert h200(gpus=4).shared == {"host"}
    assert h200(gpus=4).capacity() == h200().capacity()
    assert h200().sms == 132


@pytest.mark.parametrize("engine", ["copy-engine", "cpu-gather"])
def test_work_of_the_hosts_own_waits_for_no_copy_engine(engine: str) -> None:
    own = Op(kind="sort", layer=0, lane=Lane.HOST)
    price = priced(own, Work(flops=1e6), engine=engine)
    assert price.charges
    assert price.queue == ""
    assert priced(SPILL, Work(d2h_bytes=1e6, pieces=1), engine=engine).queue == "d2h engine"
