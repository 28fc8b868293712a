"""Timelines: busy time, and the one definition of exposed wait."""

from __future__ import annotations

import pytest

from sparda_core.errors import ConfigError
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.spans import Span, Timeline, exposed_wait_ns

PLAN = StepPlan(
    ops=(
        Op(kind=Kind.DIFF, layer=1),
        Op(kind=Kind.FETCH, layer=1, lane=Lane.H2D, after=("diff/1",)),
        Op(kind=Kind.ATTEND, layer=0),
        Op(kind=Kind.MLP, layer=0),
        Op(kind=Kind.ATTEND, layer=1, after=("fetch/1",)),
    ),
    phase=Phase.DECODE, runtime="r", selector="s", lead=1, resident_layers=1, engine="thread",
)  # fmt: skip


def span(op: str, start_ns: int, end_ns: int, step: int = 0) -> Span:
    found = PLAN[op]
    return Span(
        name=op, kind=found.kind, layer=found.layer, lane=found.lane, start_ns=start_ns, end_ns=end_ns, step=step
    )


def step(offset_ns: int, arrival_ns: int, number: int = 0) -> list[Span]:
    """A step in which layer 1's blocks arrive `arrival_ns` after its start."""
    at = [0, 10, 30, 70, max(70, arrival_ns), max(70, arrival_ns) + 20]
    times = {
        "diff/1": (at[0], at[1]), "fetch/1": (at[1], arrival_ns), "attend/0": (at[1], at[2]),
        "mlp/0": (at[2], at[3]), "attend/1": (at[4], at[5]),
    }  # fmt: skip
    return [span(name, offset_ns + start, offset_ns + end, number) for name, (start, end) in times.items()]


@pytest.mark.parametrize(("arrival_ns", "wait_ns"), [(20, 0), (70, 0), (95, 25)])
def test_exposed_wait_is_what_compute_stood_still_for(arrival_ns: int, wait_ns: int) -> None:
    assert exposed_wait_ns(Timeline(label="t", spans=step(0, arrival_ns)), PLAN) == {1: wait_ns}


def test_exposed_wait_adds_up_over_steps() -> None:
    spans = [*step(0, 95), *step(1000, 80, number=1)]
    assert exposed_wait_ns(Timeline(label="t", spans=spans), PLAN) == {1: 25 + 10}


def test_spans_are_ordered_and_overlap_is_counted_once() -> None:
    spans = [span("mlp/0", 20, 50), span("attend/0", 0, 30), span("fetch/1", 5, 70)]
    timeline = Timeline(label="t", spans=spans)
    assert [s.name for s in timeline.spans] == ["attend/0", "fetch/1", "mlp/0"]
    assert (timeline.busy_ns(Lane.COMPUTE), timeline.busy_ns(Lane.H2D), timeline.duration_ns) == (50, 65, 70)
    assert Timeline(label="empty", spans=()).duration_ns == 0


def test_a_span_cannot_end_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="before its start"):
        span("mlp/0", 5, 4)
