"""Late blocks of a step are exact by layer, and spread over rows and heads as its misses are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.facts import StepFacts
from sparda_core.late import late_blocks, late_by_layer, with_late
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.spans import Span, Timeline

PLAN = StepPlan(
    ops=(
        Op(kind=Kind.DIFF, layer=0), Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D, after=("diff/0",)),
        Op(kind=Kind.APPEND, layer=0), Op(kind=Kind.ATTEND, layer=0, after=("fetch/0",)),
    ),
    phase=Phase.DECODE, runtime="by hand", selector="by hand", lead=0, resident_layers=0, engine="uva",
)  # fmt: skip


def timeline(append_end_ns: int) -> Timeline:
    """The fetch runs from 100 to 200; attention could begin when the append has ended."""
    times = {"diff/0": (0, 100), "fetch/0": (100, 200), "append/0": (100, append_end_ns), "attend/0": (200, 300)}
    spans = [
        Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=a, end_ns=b)
        for op in PLAN for a, b in (times[op.name],)
    ]  # fmt: skip
    return Timeline(label="measured", spans=spans)


def facts(misses: list[list[int]]) -> StepFacts:
    counts = np.array([misses], np.int64)
    none, rows = np.zeros_like(counts), counts.shape[1]
    return StepFacts(
        new_tokens=1, budget=9, slots=9, active=np.ones(rows), lengths=np.full(rows, 99), selected=none + 9,
        misses=counts, opened=none, late=none, wasted=none,
    )  # fmt: skip


@pytest.mark.parametrize(("append_end_ns", "late"), [(110, 8), (150, 4), (151, 4), (175, 2), (200, 0), (260, 0)])
def test_blocks_that_arrive_after_attention_could_have_begun_are_late(append_end_ns: int, late: int) -> None:
    met = facts([[5, 3]])
    assert late_by_layer(timeline(append_end_ns), PLAN, met) == {0: late}
    assert late_blocks(timeline(append_end_ns), PLAN, [met]) == (late,)


@given(
    misses=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=5),
    end_ns=st.integers(100, 210),
)
def test_rows_and_heads_share_what_is_late_and_no_block_is_lost(misses: list[list[int]], end_ns: int) -> None:
    met = facts(misses)
    got = with_late(met, timeline(end_ns), PLAN)  # StepFacts refuses more late blocks than misses
    assert got.late.sum() == late_by_layer(timeline(end_ns), PLAN, met)[0]
    if end_ns == 100:
        assert (got.late == met.misses).all()
