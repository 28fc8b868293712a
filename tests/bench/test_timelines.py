from __future__ import annotations

import pytest

from sparda_core.bench.timelines import (
    compute_slowdown,
    exposed_s,
    join_steps,
    timeline_from_plain,
    timeline_to_plain,
)
from sparda_core.plan import Lane, Op, Phase, StepPlan
from sparda_core.spans import Span, Timeline

PLAN = StepPlan(
    ops=(
        Op(kind="project", layer=0),
        Op(kind="fetch", layer=0, lane=Lane.H2D, after=("project/0",)),
        Op(kind="attend", layer=0, after=("fetch/0",)),
    ),
    phase=Phase.DECODE, runtime="r", selector="s", lead=0, resident_layers=0, engine="thread",
)  # fmt: skip


def step(start: int, project: int, wait: int, attend: int) -> Timeline:
    ends = start + project, start + project + wait, start + project + wait + attend
    return Timeline(
        label="one",
        spans=(
            Span(name="project/0", kind="project", layer=0, lane=Lane.COMPUTE, start_ns=start, end_ns=ends[0]),
            Span(name="fetch/0", kind="fetch", layer=0, lane=Lane.H2D, start_ns=ends[0], end_ns=ends[1]),
            Span(name="attend/0", kind="attend", layer=0, lane=Lane.COMPUTE, start_ns=ends[1], end_ns=ends[2]),
        ),
    )


def test_joined_steps_follow_one_another_and_keep_their_waits() -> None:
    joined = join_steps("run", [step(5, 10, 4, 6), step(0, 10, 8, 2), step(100, 1, 0, 1)])
    assert joined.duration_ns == 20 + 20 + 2
    assert [s.start_ns for s in joined.lane(Lane.COMPUTE)] == [0, 14, 20, 38, 40, 41]
    assert {s.step for s in joined.spans} == {0, 1, 2}
    assert exposed_s(joined, PLAN) == pytest.approx(12e-9 / 3)


def test_slowdown_compares_the_same_operations_and_no_waits() -> None:
    alone = join_steps("alone", [step(0, 10, 90, 10)])
    beside = join_steps("beside", [step(0, 12, 0, 13), step(0, 11, 0, 14)])
    assert compute_slowdown(beside, alone) == pytest.approx(25 / 20)
    only = Timeline(label="part", spans=tuple(s for s in beside.spans if s.name == "project/0"))
    assert compute_slowdown(only, alone) == pytest.approx(11.5 / 10)


def test_a_timeline_survives_the_way_through_json() -> None:
    joined = join_steps("run", [step(5, 10, 4, 6), step(0, 10, 8, 2)])
    assert timeline_from_plain(timeline_to_plain(joined)) == joined
