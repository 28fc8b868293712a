from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.crossover import Asked, Winner, crossover, crossovers_in
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario
from tests.whatif.fakes import prediction, short_of

A, B = Scenario(runtime="offload-prefetch"), Scenario(runtime="offload-sync")
Speeds = Callable[[Callable[[Scenario], Any]], None]


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    """Set the formula that stands for a prediction."""
    return lambda formula: monkeypatch.setattr(Scenario, "predict", formula)


def by_runtime(first: Callable[[float], float], second: Callable[[float], float]) -> Callable[[Scenario], Any]:
    """Tokens/s over the link: `first` with prefetching, `second` without."""

    def formula(scenario: Scenario) -> Any:
        speed = first if scenario.runtime == "offload-prefetch" else second
        return prediction(speed(scenario.link_gb_s or 0.0))

    return formula


@given(where=st.floats(1.0, 99.0))
def test_a_single_crossover_is_found_within_one_per_cent(where: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scenario, "predict", by_runtime(lambda x: x / where, lambda x: 1.0))
        got = crossover(A, B, "link_gb_s", 0.5, 100)
    assert got.begins == Winner.SECOND
    changes = [(one.before, one.after) for one in got.crossings]
    # The scan may hit the very point at which both are equal.
    assert changes in ([(Winner.SECOND, Winner.FIRST)], [(Winner.SECOND, Winner.EQUAL), (Winner.EQUAL, Winner.FIRST)])
    assert all(one.low <= where * 1.000002 and one.high >= where * 0.999998 for one in got.crossings)
    assert all(one.high - one.low <= 0.01 * one.high for one in got.crossings)


def test_several_crossovers_are_found_where_the_scan_parts_them(speeds: Speeds) -> None:
    speeds(by_runtime(lambda x: 2.0 if 4 < x < 30 else 1.0, lambda x: 1.5))
    got = crossover(A, B, "link_gb_s", 1, 100)
    assert [one.after for one in got.crossings] == [Winner.FIRST, Winner.SECOND]
    assert [one.at for one in got.crossings] == pytest.approx([4, 30], rel=0.011)
    assert got.told("prefetching", "waiting").startswith("waiting, from 4.")


def test_none_in_range_says_who_wins_throughout(speeds: Speeds) -> None:
    speeds(by_runtime(lambda x: 2.0, lambda x: 1.0))
    got = crossover(A, B, "link_gb_s", 1, 60)
    assert got.crossings == ()
    assert got.told("prefetching", "waiting") == "none in range: prefetching from 1 to 60"


def test_a_change_that_begins_right_beside_0_is_not_looked_for_for_ever(speeds: Speeds) -> None:
    asked: list[float] = []

    def formula(scenario: Scenario) -> Any:
        churn = scenario.churn_share()
        asked.append(churn)
        return prediction(2.0 if churn and scenario.runtime == "offload-prefetch" else 1.0)

    speeds(formula)
    (got,) = crossover(A, B, "churn", 0.0, 0.2).crossings
    assert (got.low, got.before, got.after) == (0.0, Winner.EQUAL, Winner.FIRST)
    assert 0 < got.at < 1e-6
    assert len(asked) < 100


def test_a_whole_number_is_bisected_to_neighbours(speeds: Speeds) -> None:
    speeds(lambda s: prediction(s.batch if s.runtime == "offload-prefetch" else 20.5))
    (got,) = crossover(A, B, "batch", 1, 64).crossings
    assert (got.low, got.high, got.at) == (20, 21, 21)
    assert type(got.at) is int


def test_equal_speeds_are_nobodys_win(speeds: Speeds) -> None:
    speeds(by_runtime(lambda x: min(x, 10.0), lambda x: 10.0))
    (got,) = crossover(A, B, "link_gb_s", 1, 60).crossings
    assert (got.before, got.after) == (Winner.SECOND, Winner.EQUAL)
    assert got.at == pytest.approx(10, rel=0.011)


def test_the_lead_asked_for_moves_the_crossover(speeds: Speeds) -> None:
    speeds(by_runtime(lambda x: x, lambda x: 10.0))
    (one,), (other,) = (crossover(A, B, "link_gb_s", 1, 60, lead=lead).crossings for lead in (1, 2))
    assert [one.at, other.at] == pytest.approx([10, 20], rel=0.011)


def test_one_that_does_not_fit_loses_to_one_that_does(speeds: Speeds) -> None:
    def formula(scenario: Scenario) -> Any:
        most = 10 if scenario.runtime == "offload-prefetch" else 40
        return prediction(2.0, short_of() if scenario.batch > most else None)

    speeds(formula)
    got = crossover(A, B, "batch", 1, 64)
    assert [(one.at, one.after) for one in got.crossings] == [(11, Winner.ONLY_SECOND), (41, Winner.NEITHER)]
    assert got.told("a", "b") == "equal, from 11 only b works, from 41 neither works"


def test_a_point_that_contradicts_itself_does_not_end_the_search(speeds: Speeds) -> None:
    def formula(scenario: Scenario) -> Any:
        if scenario.batch > 8 and scenario.runtime == "offload-prefetch":
            raise ConfigError("too many")
        return prediction(1.0)

    speeds(formula)
    (got,) = crossover(A, B, "batch", 1, 64).crossings
    assert (got.at, got.after) == (9, Winner.ONLY_SECOND)


def test_what_never_works_raises_its_own_error(speeds: Speeds) -> None:
    def formula(scenario: Scenario) -> Any:
        raise ConfigError("this cannot be")

    speeds(formula)
    with pytest.raises(ConfigError, match="this cannot be"):
        crossover(A, B, "batch", 1, 64)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"knob": "linkgbs"}, "did you mean 'link_gb_s'?"),
        ({"knob": "runtime"}, "is not a number"),
        ({"low": 60}, "low=60.0 must be < high=60.0"),
        ({"high": float("nan")}, "link_gb_s=nan must be"),
        ({"low": -1}, "link_gb_s=-1 must be"),
        ({"tolerance": 0}, "tolerance=0 between"),
        ({"scan": 1}, "scan=1 must be >= 2"),
        ({"lead": 0}, "lead=0 > 0"),
    ],
)
def test_searches_that_cannot_end_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        crossover(A, B, **{"knob": "link_gb_s", "low": 1, "high": 60, **change})
    assert says in str(wrong.value)


def test_an_unknown_name_is_raised_not_lost() -> None:
    with pytest.raises(UnknownNameError, match="h200"):
        crossover(A, Scenario(profile="h20"), "batch", 1, 4)


def test_crossovers_of_a_grid_are_searched_cell_by_cell(speeds: Speeds) -> None:
    speeds(lambda s: prediction((s.link_gb_s or 0) * s.batch if s.runtime == "offload-prefetch" else 40.0))
    found = crossovers_in(
        Grid(axes={"batch": (1, 2, 4)}), {"runtime": "offload-prefetch"}, {"runtime": "offload-sync"},
        Asked(knob="link_gb_s", low=1, high=60),
    )  # fmt: skip
    assert [one.given for one in found] == [{"batch": 1}, {"batch": 2}, {"batch": 4}]
    ats = [one.crossovers.crossings[0].at for one in found if one.crossovers is not None]
    assert ats == pytest.approx([40, 20, 10], rel=0.011)


def test_on_the_real_simulator_prefetching_needs_a_fast_enough_link_to_gain_a_tenth() -> None:
    base = Scenario(batch=8, context=32768, churn=0.1)
    got = crossover(base, base.turned(runtime="offload-sync"), "link_gb_s", 0.5, 50, lead=1.1, scan=5, tolerance=0.05)
    assert (got.begins, got.crossings[0].after) == (Winner.SECOND, Winner.FIRST)
