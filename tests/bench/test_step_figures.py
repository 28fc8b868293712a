"""Figures of timelines: by hand, and laws that hold for whatever ran, measured or simulated."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.bench import step_figures as figures
from sparda_core.bench.step_figures import step_figures
from sparda_core.bench.timelines import timeline_from_plain, timeline_to_plain
from sparda_core.errors import ConfigError
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.simulator.step_models import FULL, NO_CONTENTION, STEP_MODELS
from sparda_core.spans import Span, Timeline
from sparda_core.work import Work
from tests.simulator.scenes import by_kind, facts, gpu, pipeline, plan

PLAN = plan(
    Op(kind=Kind.PROJECT, layer=0), Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D), Op(kind=Kind.MLP, layer=0),
    Op(kind=Kind.ATTEND, layer=0, after=("fetch/0",)),
)  # fmt: skip


def span(kind: Kind, start: int, end: int, *, step: int = 0, lane: Lane = Lane.COMPUTE) -> Span:
    return Span(name=f"{kind}/0", kind=kind, layer=0, lane=lane, start_ns=start, end_ns=end, step=step)


def two_steps() -> Timeline:
    """A step of 100 ns and one of 120, 10 apart: attention waits 5 and 25 ns for copies of 60 and 80."""
    spans = []
    for step, start, wait in ((0, 0, 5), (1, 110, 25)):
        spans += [
            span(Kind.PROJECT, start, start + 20, step=step), span(Kind.MLP, start + 20, start + 65, step=step),
            span(Kind.FETCH, start + 10, start + 65 + wait, step=step, lane=Lane.H2D),
            span(Kind.ATTEND, start + 65 + wait, start + 95 + wait, step=step),
        ]  # fmt: skip
    return Timeline(label="two", spans=spans)


def test_every_figure_of_two_steps_is_as_worked_out_by_hand() -> None:
    got = step_figures(two_steps(), PLAN, rows=4, moved_bytes=140)
    assert got.to_plain() == {
        "step_s": pytest.approx(110e-9), "tokens_per_s": pytest.approx(4 / 110e-9), "compute_s": pytest.approx(95e-9),
        "copying_s": pytest.approx(70e-9), "copy_bytes_per_s": pytest.approx(2e9), "exposed_s": pytest.approx(15e-9),
        "hidden_share": pytest.approx(1 - 15 / 70), "exposed_by_layer": {0: pytest.approx(15e-9)},
        "by_kind": {
            "fetch": pytest.approx(70e-9), "mlp": pytest.approx(45e-9), "attend": pytest.approx(30e-9),
            "project": pytest.approx(20e-9),
        },
    }  # fmt: skip
    assert list(got.by_kind) == ["fetch", "mlp", "attend", "project"]


def test_slowdown_looks_at_what_copies_ran_beside() -> None:
    alone = Timeline(
        label="alone", spans=[span(Kind.PROJECT, 0, 15), span(Kind.MLP, 15, 35), span(Kind.ATTEND, 35, 65)]
    )
    # Half of `project` has a copy beside it: 10 ns of its time alone were done before, 5 in the 10 ns beside the copy.
    # All 45 ns of `mlp` did what takes 20. Attention never met a copy.
    one = Timeline(label="beside", spans=[s for s in two_steps().spans if s.step == 0])
    assert figures.slowdown_beside_copies(one, alone) == pytest.approx((10 + 45) / (5 + 20))
    assert figures.slowdown_beside_copies(alone, alone) is None
    late = Timeline(label="late", spans=[span(Kind.MLP, 0, 20), span(Kind.FETCH, 30, 40, lane=Lane.H2D)])
    assert figures.slowdown_beside_copies(late, alone) is None


def test_a_lone_step_is_as_long_as_its_spans_and_no_step_is_refused() -> None:
    one = Timeline(label="one", spans=[s for s in two_steps().spans if s.step == 1])
    assert figures.step_time_s(one, PLAN) == pytest.approx(120e-9)
    with pytest.raises(ConfigError, match="'none' has no spans"):
        figures.step_time_s(Timeline(label="none", spans=()), PLAN)
    short = Timeline(label="short", spans=[s for s in two_steps().spans if (s.step, s.kind) != (1, Kind.PROJECT)])
    with pytest.raises(ConfigError, match="2 steps, of which 1 have 'project/0'"):
        figures.step_time_s(short, PLAN)


def test_hidden_share_of_three_runs() -> None:
    assert figures.paired_hidden_share(sync_s=3.0, early_s=1.5, resident_s=1.0) == pytest.approx(0.75)
    assert figures.paired_hidden_share(sync_s=1.0, early_s=1.0, resident_s=1.0) is None


def test_nothing_copied_has_no_bandwidth_and_no_hidden_share() -> None:
    still = Timeline(label="still", spans=[span(Kind.PROJECT, 0, 10), span(Kind.MLP, 10, 30)])
    got = step_figures(still, PLAN, rows=1, moved_bytes=0)
    assert (got.copy_bytes_per_s, got.hidden_share, got.exposed_s) == (None, None, 0)


WORK = st.floats(1e8, 1e10)


@st.composite
def simulated(draw: st.DrawFn) -> tuple[StepPlan, Timeline, Timeline, float]:
    """A plan, some of its steps simulated in full and without contention, and bytes moved in a step."""
    layers, early, steps = draw(st.integers(2, 5)), draw(st.booleans()), draw(st.integers(1, 3))
    moved = draw(st.floats(1e5, 2e7))
    works: dict[str, Work] = {kind: Work(flops=draw(WORK)) for kind in (Kind.PROJECT, Kind.DIFF, Kind.MLP)}
    works[Kind.ATTEND] = Work(hbm_bytes=draw(st.floats(1e6, 1e8)))
    works[Kind.FETCH] = Work(h2d_bytes=moved, hbm_bytes=moved * draw(st.floats(0, 5)), pieces=1, sms=1)
    made, machine = pipeline(layers, early=early), gpu(step_s=draw(st.sampled_from([0.0, 3e-6])))
    runs = [STEP_MODELS[name].run for name in (FULL, NO_CONTENTION)]
    assert all(runs)
    full, free = (run(made, [facts(layers=layers)] * steps, by_kind(works), machine).timeline for run in runs if run)
    return made, full, free, moved * (layers - 1)


@given(simulated(), st.integers(0, 10**9))
def test_laws_of_figures(scene: tuple[StepPlan, Timeline, Timeline, float], shift: int) -> None:
    made, full, free, moved = scene
    got = step_figures(full, made, rows=1, moved_bytes=moved)
    # Lanes are serial, so kinds add up to them; the compute lane works or waits.
    assert sum(got.by_kind.values()) == pytest.approx(got.compute_s + got.copying_s)
    assert got.copy_bytes_per_s is not None
    assert got.copy_bytes_per_s * got.copying_s == pytest.approx(moved)
    assert got.copy_bytes_per_s <= 5e10 * (1 + 1e-6)
    assert got.exposed_s + got.compute_s <= got.step_s * (1 + 1e-9)
    assert got.hidden_share is not None
    assert 0 <= got.hidden_share <= 1
    # Nobody knows where zero was, and a timeline is what its spans say, whoever recorded them.
    later = [attrs.evolve(s, start_ns=s.start_ns + shift, end_ns=s.end_ns + shift, args={}) for s in full.spans]
    for other in (Timeline(label="measured", spans=later), timeline_from_plain(timeline_to_plain(full))):
        assert step_figures(other, made, rows=1, moved_bytes=moved) == got
    slower = figures.slowdown_beside_copies(full, free)
    assert slower is None or slower >= 1 - 1e-3
    assert step_figures(free, made, rows=1, moved_bytes=moved).step_s <= got.step_s * (1 + 1e-9)
