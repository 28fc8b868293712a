from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.whatif.frontier import Between, Cell, cells, frontiers, pairs, parse_between, with_between
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import Row, Status
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Study, run_grid
from sparda_core.whatif.summary import margin, reasons
from tests.whatif.fakes import usual

AXES = {
    "link_gb_s": (10.0, 20.0), "batch": (8, 32, 64), "runtime": ("offload-sync", "offload-prefetch"), "ctas": (2, 4),
}  # fmt: skip


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(Scenario, "predict", usual)
    return run_grid(Grid(axes=AXES))


def row(point: int, speed: float, memory: float) -> Row:
    return Row(
        point=point, labels={}, status=Status.FITS, step_s=1 / speed, tokens_per_s=speed, device_bytes=memory
    )


def test_a_cell_is_what_is_given_and_its_best_is_what_one_chooses(study: Study) -> None:
    found = cells(study)
    assert [cell.given for cell in found[:3]] == [{"link_gb_s": 10.0, "batch": batch} for batch in (8, 32, 64)]
    best = found[0].ranked[0]
    assert (best.labels["runtime"], best.labels["ctas"]) == ("offload-prefetch", 2)  # a tie goes to the earlier point
    assert found[2].ranked == []
    assert margin(found[0]) == pytest.approx(0)


def test_axes_to_choose_on_can_be_named(study: Study) -> None:
    found = cells(study, ["runtime"])
    assert found[0].given == {"link_gb_s": 10.0, "batch": 8, "ctas": 2}
    assert margin(found[0]) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="'policy' is no axis"):
        cells(study, ["policy"])


def test_on_a_frontier_the_batch_is_a_choice_and_more_speed_costs_memory(study: Study) -> None:
    (slow, _) = frontiers(study)
    assert slow.given == {"link_gb_s": 10.0}
    assert [(r.labels["batch"], r.labels["runtime"]) for r in slow.frontier] == [
        (8, "offload-prefetch"), (32, "offload-prefetch")
    ]  # fmt: skip


@given(points=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_nothing_beats_a_row_of_the_frontier_and_something_beats_every_other(points: list[tuple[int, int]]) -> None:
    rows = tuple(row(at, speed, memory) for at, (speed, memory) in enumerate(points))
    kept = Cell(given={}, rows=rows).frontier

    def beats(one: Row, other: Row) -> bool:
        mine, theirs = ((r.tokens_per_s or 0, -(r.device_bytes or 0)) for r in (one, other))
        return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))

    assert not any(beats(one, other) for one in rows for other in kept)
    figures = {(r.tokens_per_s, r.device_bytes) for r in kept}
    assert len(figures) == len(kept)
    for one in rows:
        assert (one.tokens_per_s, one.device_bytes) in figures or any(beats(other, one) for other in kept)


def test_a_pair_says_how_many_times_faster_the_second_is(study: Study) -> None:
    between = Between(first={"runtime": "offload-sync"}, second={"runtime": "offload-prefetch"})
    found = pairs(study, between)
    assert len(found) == 2 * 3 * 2
    assert found[0].given == {"link_gb_s": 10.0, "batch": 8, "ctas": 2}
    assert [pair.speedup for pair in found if pair.given["batch"] < 64] == pytest.approx([1.5] * 8)
    assert [pair.speedup for pair in found if pair.given["batch"] == 64] == [None] * 4


def test_a_comparison_of_labels_that_are_not_there_is_refused(study: Study) -> None:
    with pytest.raises(ConfigError, match="runtime='resident' is not on the grid, which has offload-sync"):
        pairs(study, Between(first={"runtime": "resident"}, second={"runtime": "offload-sync"}))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["runtime=resident"], "must name two different values"),
        (["runtime=a,b,c"], "must name two different values"),
        (["runtime=a,a"], "must name two different values"),
        (["ctas=1,2", "ctas=2,4"], "names a knob twice"),
        (["runtim=a,b"], "did you mean 'runtime'?"),
    ],
)
def test_a_comparison_is_of_two(texts: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_between(texts)
    assert says in str(wrong.value)


@pytest.mark.parametrize(
    ("axes", "texts", "names", "points"),
    [
        ({"batch": (1, 2)}, ["runtime=offload-sync,offload-prefetch"], ["batch", "runtime"], 4),
        ({"runtime": ("resident",)}, ["runtime=offload-sync,offload-prefetch"], ["runtime"], 3),
        ({}, ["selector=query,forecast", "runtime=offload-sync,offload-prefetch"], ["between"], 2),
        ({"selector": ("query", "forecast")}, ["selector=query,forecast", "ctas=2,4"], ["selector", "ctas"], 4),
    ],
)
def test_both_sides_of_a_comparison_are_on_the_grid(
    axes: dict[str, Any], texts: list[str], names: list[str], points: int
) -> None:
    full, between = with_between(axes, parse_between(texts))
    grid = Grid(axes=full)
    assert [axis.name for axis in grid.axes] == names
    assert len(grid) == points
    assert between is not None
    for side in (between.first, between.second):
        assert all(label in grid.axis(name).labels for name, label in side.items())


def test_reasons_are_counted_most_frequent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "predict", usual)
    study = run_grid(Grid(axes={"batch": (1, 2, 3), "budget": (96, 97)}))
    assert reasons(study) == [("budget=97 is not liked here", 3)]
