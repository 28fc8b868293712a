"""Explanations: slopes are differences, and a change of bound lies where it is said to lie."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.whatif.explain import Explanation, explain, slopes_of, turned_to, turns_of, values_now
from sparda_core.whatif.nearest import FINE, LIMITS, nearest_turn
from sparda_core.whatif.scenario import Scenario

MOVING = Scenario(batch=16, context=32768, churn=0.1, locality="hisparse")


@pytest.fixture(scope="module")
def moving() -> Explanation:
    return explain(MOVING)


def test_the_steepest_three_come_first(moving: Explanation) -> None:
    steep = [abs(slope.slope) for slope in moving.slopes]
    assert steep == sorted(steep, reverse=True)
    assert moving.steepest == moving.slopes[:3]
    assert all(slope.slope for slope in moving.slopes)


def test_a_slope_is_what_one_percent_more_gives(moving: Explanation) -> None:
    got = {slope.knob: slope for slope in moving.slopes}
    here = MOVING.predict().tokens_per_s
    for name in ("link_gb_s", "churn", "hbm_gb_s"):
        more = turned_to(MOVING, name, got[name].at * 1.01).predict().tokens_per_s
        assert math.log(more / here) / math.log(1.01) == pytest.approx(got[name].slope, abs=0.1)
    assert got["link_gb_s"].slope > 0 > got["churn"].slope


def test_an_integer_is_turned_to_its_neighbours() -> None:
    got = {slope.knob: slope.slope for slope in slopes_of(MOVING.turned(batch=4))}
    rates = [MOVING.turned(batch=rows).predict().tokens_per_s for rows in (3, 5)]
    assert got["batch"] == pytest.approx(math.log(rates[1] / rates[0]) / math.log(5 / 3))


def test_a_knob_at_its_end_is_turned_one_way() -> None:
    """No link of the generation is faster, and there is no batch of 0."""
    start = MOVING.turned(batch=1, churn=0.3, link_gb_s=60.2)
    got = {slope.knob: slope.slope for slope in slopes_of(start)}
    assert got["link_gb_s"] > 0
    assert got["batch"] > 0


def test_the_bound_changes_where_it_is_said_to(moving: Explanation) -> None:
    bound = MOVING.predict().bound
    changed = [turn for turn in moving.turns if turn.value is not None]
    assert changed
    for turn in changed:
        assert turn.value is not None
        assert turn.factor is not None
        assert turn.factor == pytest.approx(turn.value / turn.at)
        assert turned_to(MOVING, turn.knob, turn.value).predict().bound == turn.then != bound
        whole = Scenario.knobs()[turn.knob].kind is int
        nearer = turn.value + math.copysign(1, turn.at - turn.value) if whole else turn.value / turn.factor**0.1
        assert turned_to(MOVING, turn.knob, nearer).predict().bound == bound


def test_where_nothing_changes_it_is_said_how_far_was_looked() -> None:
    got = {turn.knob: turn for turn in turns_of(Scenario(runtime="resident"))}
    assert set(got) == {"batch", "context"}  # nothing is moved: no link, no churn, no slots
    most = next(rows for rows in range(20, 40) if not Scenario(runtime="resident", batch=rows + 1).predict().feasible)
    assert got["batch"].value is None
    assert f"up to {most} (memory is short beyond)" in got["batch"].why


def test_what_does_not_fit_cannot_be_explained() -> None:
    with pytest.raises(CapacityError):
        explain(Scenario(batch=1000))


def test_slots_are_asked_about_only_where_they_decide_misses() -> None:
    assert "slots" in values_now(MOVING)
    assert "slots" not in values_now(Scenario())
    assert values_now(Scenario())["in_flight_kib"] == 128
    assert "ctas" not in values_now(Scenario(engine="copy-engine"))


def step(edge: float, *, refused: Callable[[float], bool] = lambda _: False) -> Callable[[float], str]:
    def answer(value: float) -> str:
        if refused(value):
            raise ConfigError("no")
        return "below" if value < edge else "above"

    return answer


@given(edge=st.floats(0.02, 9e3), at=st.floats(0.02, 9e3))
def test_a_single_edge_is_found_from_either_side(edge: float, at: float) -> None:
    answer = step(edge)
    got = nearest_turn("link_gb_s", at, answer(at), answer)
    assert got.value is not None
    assert answer(got.value) == got.then != answer(at)
    assert edge / FINE <= got.value <= edge * FINE


@given(edge=st.integers(2, 4000), at=st.integers(1, 4096))
def test_an_integer_edge_is_found_exactly(edge: int, at: int) -> None:
    answer = step(edge)
    got = nearest_turn("batch", at, answer(at), answer)
    assert got.value == (edge if at < edge else edge - 1)


@given(edge=st.integers(2, 60), most=st.integers(60, 500), at=st.integers(1, 60))
def test_what_is_refused_beyond_hides_no_edge_before_it(edge: int, most: int, at: int) -> None:
    answer = step(edge, refused=lambda value: value > most)
    got = nearest_turn("batch", at, answer(at), answer)
    assert got.value == (edge if at < edge else edge - 1)


def test_of_two_edges_the_nearer_one_counts() -> None:
    def answer(value: float) -> str:
        return "low" if value < 5 else "middle" if value < 100 else "high"

    assert nearest_turn("batch", 8, "middle", answer).then == "low"
    assert nearest_turn("batch", 80, "middle", answer).then == "high"


def test_no_edge_is_an_answer_too() -> None:
    got = nearest_turn("batch", 10, "below", step(1e9, refused=lambda value: value > 70))
    assert (got.value, got.factor, got.then) == (None, None, None)
    assert got.why == "below up to 70 (it is refused beyond) and down to 1"
    assert set(LIMITS) <= set(Scenario.knobs())
