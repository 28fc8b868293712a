"""Kernels of a profile become spans of operations, and what does not match is refused."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from sparda_core.bench.decode.kernel_spans import Ran, launches_of, step_s, timeline_of
from sparda_core.cli.main import main
from sparda_core.errors import RecordingError
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.spans import exposed_wait_ns
from sparda_core.trace import Origin, TraceSource, trace_events

SHAPE = ModelShape(
    name="small", layers=3, hidden=32, ffn=48, q_heads=4, kv_heads=2, head_dim=8, vocab=97, context=512
)  # fmt: skip
PLAN = RUNTIMES.make("offload-prefetch").decode_plan(
    shape=SHAPE, spec=BlockSpec(), selector=SELECTORS.make("forecast")
)  # fmt: skip
RESIDENT = RUNTIMES.make("resident").decode_plan(shape=SHAPE, spec=BlockSpec(), selector=SELECTORS.make("forecast"))
STEP_NS, STEPS = 1_000_000, 4


#: Some launch nothing, some several; products have one name everywhere.
KERNELS: dict[str, tuple[str, ...]] = {
    Kind.APPEND: (), Kind.ENTRIES: (), Kind.MLP: ("norm", "product", "gate", "product"), Kind.FETCH: ("gather",),
    Kind.OUTPUT: ("product",), Kind.PROJECT: ("norm", "product", "rotate"),
}  # fmt: skip


def kernels_of(kind: str) -> tuple[str, ...]:
    return KERNELS.get(kind, (f"{kind}_kernel",))


def graph(plan: StepPlan, *, steps: int = STEPS) -> list[Ran]:
    """Whole steps, each lane serial, a copy beside what comes after it; streams as the driver likes."""
    ran = []
    for step in range(steps):
        now = dict.fromkeys(Lane, step * STEP_NS + 7_000)
        for op in plan:
            if op.lane == Lane.H2D:
                now[Lane.H2D] = max(now[Lane.H2D], now[Lane.COMPUTE])
            for name in kernels_of(op.kind):
                start, now[op.lane] = now[op.lane], now[op.lane] + 1_000
                ran.append(Ran(name=name, start_ns=start, end_ns=now[op.lane], stream=start // 1_000 % 3))
    random.Random(0).shuffle(ran)  # noqa: S311  a test's
    return ran


def marked(plan: StepPlan) -> list[Ran]:
    ran, now = [], 0
    for op in plan:
        for name in ("at::spin_kernel(long)", *kernels_of(op.kind)):
            stream = 20 if op.lane == Lane.H2D else 7
            ran.append(Ran(name=name, start_ns=now, end_ns=now + 10, stream=stream))
            now += 10
    return ran


@pytest.mark.parametrize("plan", [PLAN, RESIDENT])
def test_every_operation_of_every_step_has_its_span(plan: StepPlan) -> None:
    launches = launches_of(marked(plan), plan, "spin_kernel")
    assert launches == {op.name: kernels_of(op.kind) for op in plan}
    timeline = timeline_of(graph(plan), plan, launches, steps=STEPS)
    assert {(span.step, span.name) for span in timeline.spans} == {
        (step, op.name) for step in range(STEPS) for op in plan
    }
    for span in timeline.spans:
        assert span.end_ns - span.start_ns == 1_000 * len(kernels_of(span.kind))
        assert span.lane == plan[span.name].lane
    assert timeline.spans[0].start_ns == 0
    assert step_s(timeline, plan) == pytest.approx(STEP_NS / 1e9)
    exposed_wait_ns(timeline, plan)
    assert trace_events([TraceSource(timeline=timeline, plan=plan, origin=Origin.MEASURED)])


def test_kernels_that_overlap_within_the_profilers_clock_are_set_one_after_the_other() -> None:
    launches = launches_of(marked(PLAN), PLAN, "spin_kernel")
    ran = [attrs.evolve(one, end_ns=one.end_ns + 500) for one in graph(PLAN)]
    assert trace_events([TraceSource(timeline=timeline_of(ran, PLAN, launches, steps=STEPS), plan=PLAN)])
    with pytest.raises(RecordingError, match="before the one before it ended"):
        timeline_of([attrs.evolve(one, end_ns=one.end_ns + 5_000) for one in graph(PLAN)], PLAN, launches, steps=STEPS)


def test_what_a_kernel_that_starts_early_waits_is_its_predecessors_time() -> None:
    launches = launches_of(marked(PLAN), PLAN, "spin_kernel")
    usual = timeline_of(graph(PLAN), PLAN, launches, steps=STEPS)
    # Every kernel starts before the end of the one ahead of it.
    ahead = [attrs.evolve(one, end_ns=one.end_ns + 400) for one in graph(PLAN)]
    late = timeline_of(ahead, PLAN, launches, steps=STEPS, early=True)
    assert {span.name for span in late.spans} == {span.name for span in usual.spans}
    by_lane = {lane: [span for span in late.spans if span.lane == lane] for lane in (Lane.COMPUTE, Lane.H2D)}
    assert all(one.end_ns <= other.start_ns for spans in by_lane.values() for one, other in pairwise(spans))
    swapped = [
        attrs.evolve(one, start_ns=one.start_ns - 9_000) if one.name == "head_kernel" else one for one in graph(PLAN)
    ]
    with pytest.raises(RecordingError):
        timeline_of(swapped, PLAN, launches, steps=STEPS, early=True)


def test_what_does_not_match_is_refused_and_said() -> None:
    launches, ran = launches_of(marked(PLAN), PLAN, "spin_kernel"), graph(PLAN)
    with pytest.raises(RecordingError, match=r"lane compute ran \d+ kernels in 3 steps"):
        timeline_of(ran, PLAN, launches, steps=3)
    with pytest.raises(RecordingError, match=r"ran \['strange'\], which no operation"):
        timeline_of([*ran, attrs.evolve(ran[0], name="strange")], PLAN, launches, steps=STEPS)
    other = [attrs.evolve(one, name={"norm": "gate", "gate": "norm"}.get(one.name, one.name)) for one in ran]
    with pytest.raises(RecordingError, match=r"project/0 of step 0 launched \('gate'.*\('norm'"):
        timeline_of(other, PLAN, launches, steps=STEPS)
    with pytest.raises(RecordingError, match="both lanes launch"):
        timeline_of(ran, PLAN, {**launches, "fetch/1": ("norm",)}, steps=STEPS)
    with pytest.raises(RecordingError, match="saw no kernel"):
        timeline_of([], PLAN, launches, steps=STEPS)


def test_markers_that_do_not_fit_the_plan_are_refused() -> None:
    with pytest.raises(RecordingError, match="want one marker before each operation"):
        launches_of(marked(PLAN)[1:], PLAN, "spin_kernel")
    with pytest.raises(RecordingError, match="no stream ran fetch/1"):
        launches_of([one for one in marked(PLAN) if one.stream == 7], PLAN, "spin_kernel")


def test_a_timeline_is_of_one_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "decode", "--only", "b16", "--timeline", str(tmp_path / "trace.json")]) == 2
    assert "--timeline traces one cell" in capsys.readouterr().err
