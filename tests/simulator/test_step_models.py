"""The simulator without its parts, and the formulas of others, against figures worked out by hand."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, ProfileError
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.simulator.alone import Window, overlaps, windows
from sparda_core.simulator.cpu import KindCost
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.outside import overlapped_roofline_s
from sparda_core.simulator.step_models import (
    FIXED,
    FULL,
    LONGER,
    MAX_OF_SUMS,
    NO_CONTENTION,
    ROOFLINE,
    STEP_MODELS,
    step_model,
)
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, cpu, facts, gpu, pipeline, plan

US = 1e-6
#: On a machine of 1e14 FLOP/s, 1e12 B/s and a link of 5e10 B/s: 10, 10, 20 and 30 us, and 100 us of copying.
WORKS: dict[str, Work] = {
    Kind.PROJECT: Work(flops=1e9), Kind.DIFF: Work(flops=1e9), Kind.ATTEND: Work(flops=2e9), Kind.MLP: Work(flops=3e9),
    Kind.FETCH: Work(h2d_bytes=5e6, pieces=1, sms=1),
}  # fmt: skip
#: One operation that reads device memory for 100 us alone; a copy of 100 us that takes half of device memory.
MEMORY: dict[str, Work] = {
    Kind.PROJECT: Work(flops=1e9), Kind.MLP: Work(hbm_bytes=1e8),
    Kind.FETCH: Work(h2d_bytes=5e6, hbm_bytes=5e7, pieces=1, sms=1),
}  # fmt: skip


def taken_us(name: str, made: StepPlan, machine: GpuProfile, works: dict[str, Work] | None = None) -> float:
    return STEP_MODELS[name].seconds(made, [facts()], by_kind(works or WORKS), machine) / US


def test_windows_are_cut_where_compute_waits_and_begin_beside_where_a_transfer_is_released() -> None:
    made = pipeline(3, early=True)
    names = [op.name for op in made.ops]
    assert names[:4] == ["project/0", "diff/1", "fetch/1", "attend/0"]
    first, second, tail = windows(made)
    assert first == Window(head=(0, 1), beside=(3, 4, 5, 6), transfers=(2,))
    assert [names[i] for i in second.beside] == ["attend/1", "mlp/1", "project/2"]
    assert (second.head, [names[i] for i in second.transfers]) == ((), ["fetch/2"])
    assert ([names[i] for i in tail.head + tail.beside], tail.transfers) == (["attend/2", "mlp/2"], ())


def test_windows_hold_every_operation_once() -> None:
    for early in (True, False):
        made = pipeline(5, early=early)
        held = [i for window in windows(made) for i in (*window.head, *window.beside, *window.transfers)]
        assert sorted(held) == list(range(len(made.ops)))
        assert overlaps(made) == early


def test_a_transfer_that_nothing_waits_for_belongs_to_the_tail() -> None:
    made = plan(Op(kind=Kind.PROJECT), Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D, after=("project",)))
    assert windows(made) == (Window(head=(0,), beside=(), transfers=(1,)),)
    assert not overlaps(made)


def test_what_each_model_makes_of_a_prefetching_step() -> None:
    # Compute alone: 3 x (10 + 20 + 30) and two diffs of 10. The first copy starts at 20, the second when it ends.
    made = pipeline(3, early=True)
    assert taken_us(NO_CONTENTION, made, gpu()) == pytest.approx(20 + 100 + 100 + 50)
    assert taken_us(MAX_OF_SUMS, made, gpu()) == pytest.approx(20 + max(70, 100) + max(60, 100) + 50)
    assert taken_us(LONGER, made, gpu()) == pytest.approx(max(200, 200))
    assert taken_us(FULL, made, gpu()) == pytest.approx(270)


def test_what_each_model_makes_of_a_step_that_waits_for_every_copy() -> None:
    made = pipeline(3, early=False)
    for name in (FULL, NO_CONTENTION, MAX_OF_SUMS, LONGER, FIXED):
        assert taken_us(name, made, gpu()) == pytest.approx(400), name


def test_launch_gaps_and_the_step_s_own_gap_count_in_every_model_but_the_roofline() -> None:
    made, machine = pipeline(3, early=False), gpu(gap_s=1e-6, step_s=5e-6)
    for name in (FULL, NO_CONTENTION, MAX_OF_SUMS, LONGER, FIXED):
        assert taken_us(name, made, machine) == pytest.approx(400 + len(made.ops) + 5), name


def test_a_host_that_issues_every_operation_runs_ahead_of_them_in_every_model_that_knows_it() -> None:
    made, slow = pipeline(3, early=False), 50e-6
    machine = attrs.evolve(gpu(eager_s=slow), launches="eager")
    # Thirteen operations of 50 us each; the last copy is the eleventh, and what waits for it follows.
    assert taken_us(FULL, made, machine) == pytest.approx(11 * 50 + 100 + 20 + 30)
    assert taken_us(LONGER, made, machine) == pytest.approx(13 * 50)
    quick = attrs.evolve(gpu(eager_s=1e-6), launches="eager")
    assert taken_us(LONGER, made, quick) == pytest.approx(400)


def test_the_roofline_reads_offloaded_bytes_at_the_mean_of_both_bandwidths() -> None:
    works: dict[str, Work] = {
        Kind.PROJECT: Work(hbm_bytes=1e7), Kind.ATTEND: Work(hbm_bytes=2e7, flops=4e9), Kind.MLP: Work(flops=3e9),
        Kind.DIFF: Work(), Kind.FETCH: Work(h2d_bytes=5e6, pieces=1, sms=1),
    }  # fmt: skip
    # 9e7 bytes are read, 1e7 of them over the link: max(80, 200) us of memory in all, 2.22 us for every MB of it.
    # Two operations wait for it (project 22.2, attend 44.4 against 40 of FLOPs), feed-forward for 30 us of FLOPs.
    made = pipeline(3, early=True)
    assert taken_us(ROOFLINE, made, gpu(), works) == pytest.approx(200 + 3 * 30)
    assert taken_us(ROOFLINE, made, gpu(link=1e12), works) == pytest.approx(80 / 9 * 3 + 3 * 40 + 3 * 30)


def test_the_roofline_of_a_resident_step_is_the_plain_one() -> None:
    works: dict[str, Work] = {
        Kind.PROJECT: Work(hbm_bytes=1e7), Kind.ATTEND: Work(flops=4e9), Kind.MLP: Work(flops=1e9, hbm_bytes=1e8),
    }  # fmt: skip
    assert taken_us(ROOFLINE, pipeline(2, early=True, fetch=False), gpu(), works) == pytest.approx(2 * (10 + 40 + 100))


def test_a_share_fixed_at_the_start_is_kept_when_the_copy_has_ended() -> None:
    # The copy takes half of device memory for 100 us. Then the operation has 50 us of work left, and takes 50 or 100.
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP))
    assert taken_us(FULL, made, gpu(), MEMORY) == pytest.approx(150)
    assert taken_us(FIXED, made, gpu(), MEMORY) == pytest.approx(200)
    assert taken_us(NO_CONTENTION, made, gpu(), MEMORY) == pytest.approx(100)


def test_a_share_fixed_at_the_start_is_kept_when_a_copy_comes() -> None:
    late = plan(
        Op(kind=Kind.EMBED, lane=Lane.H2D), Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP),
    )  # fmt: skip
    works: dict[str, Work] = {**MEMORY, Kind.EMBED: Work(h2d_bytes=2.5e6, pieces=1, sms=1)}
    # A first copy takes no device memory: the operation is alone for 50 us, then beside the second copy for 100, in
    # which the other half of it moves. Fixed: as if the second never came.
    assert taken_us(FULL, late, gpu(), works) == pytest.approx(150)
    assert taken_us(FIXED, late, gpu(), works) == pytest.approx(150)
    mlp = {
        name: next(s for s in run(late, [facts()], by_kind(works), gpu()).steps[0].spans() if s.kind == Kind.MLP)
        for name, run in ((name, STEP_MODELS[name].run) for name in (FULL, FIXED)) if run is not None
    }  # fmt: skip
    assert mlp[FULL].end_ns - mlp[FULL].start_ns == 150_000
    assert mlp[FIXED].end_ns - mlp[FIXED].start_ns == 100_000


def test_without_contention_a_copy_takes_no_multiprocessor() -> None:
    made = pipeline(3, early=True)
    assert taken_us(FULL, made, gpu(slower=2)) > taken_us(FULL, made, gpu())
    assert taken_us(NO_CONTENTION, made, gpu(slower=2)) == taken_us(NO_CONTENTION, made, gpu())


def test_a_mean_over_steps_is_their_mean() -> None:
    made = pipeline(3, early=True)
    for name, model in STEP_MODELS.items():
        once = model.seconds(made, [facts()], by_kind(WORKS), gpu())
        assert model.seconds(made, [facts(), facts()], by_kind(WORKS), gpu()) == pytest.approx(once), name


@given(
    st.integers(2, 5), st.integers(0, 1), st.lists(st.floats(1e8, 1e10), min_size=4, max_size=4), st.floats(1e5, 2e7),
    st.floats(1, 3),
)  # fmt: skip
def test_less_is_never_slower(layers: int, lead: int, flops: list[float], moved: float, slower: float) -> None:
    """What is left out can only have cost time; and what overlaps takes no less than its longer side."""
    made = pipeline(layers, early=bool(lead))
    kinds = (Kind.PROJECT, Kind.DIFF, Kind.ATTEND, Kind.MLP)
    works: dict[str, Work] = {kind: Work(flops=size) for kind, size in zip(kinds, flops, strict=True)}
    works[Kind.FETCH] = Work(h2d_bytes=moved, pieces=1, sms=1)
    machine = gpu(slower=slower, gap_s=1e-6)
    full, free, longer, sums = (taken_us(name, made, machine, works) for name in (
        FULL, NO_CONTENTION, LONGER, MAX_OF_SUMS,
    ))  # fmt: skip
    least = 1 - 1e-4  # whole nanoseconds
    assert full >= free * least
    assert free >= sums * least
    assert sums >= longer * least
    if not lead:
        assert full == pytest.approx(longer, rel=1e-3)


def test_an_emulated_link_stays_as_slow_as_it_is_without_contention() -> None:
    costs = {
        "decode/project": KindCost(fixed_s=10e-6, driver="flops", per_unit_s=0, slowdown=2.0),
        "decode/fetch": KindCost(fixed_s=0, driver="h2d_bytes", per_unit_s=1e-12, slowdown=1.0),
    }
    made = plan(Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.PROJECT), engine="thread")
    works = by_kind({Kind.PROJECT: Work(), Kind.FETCH: Work(h2d_bytes=5e6, pieces=1)})
    taken = STEP_MODELS[NO_CONTENTION].seconds(made, [facts()], works, cpu(costs).with_link(1e11))
    assert taken / US == pytest.approx(50)


def test_a_machine_without_ceilings_has_no_roofline_and_an_unknown_model_is_named() -> None:
    costs = {"decode/project": KindCost(fixed_s=1e-6, driver="flops", per_unit_s=0)}
    with pytest.raises(ProfileError, match=r"no ceilings.*use a GPU's profile"):
        overlapped_roofline_s(plan(Op(kind=Kind.PROJECT)), [facts()], by_kind({}), cpu(costs))
    with pytest.raises(ConfigError, match=r"model='psychic' is unknown; known: full model"):
        step_model("psychic")
