"""Order, regret, crossovers and slopes of measured and predicted rates, worked out by hand."""

from __future__ import annotations

import math

import pytest

from sparda_core.bench.validate.decisions import crossing, kendall_tau, log_slope, regret
from sparda_core.errors import ConfigError

MEASURED = {"a": 100.0, "b": 200.0, "c": 300.0, "d": 400.0}


def test_tau_is_one_for_the_same_order_and_minus_one_for_the_opposite() -> None:
    assert kendall_tau(MEASURED, {name: rate**2 for name, rate in MEASURED.items()}).tau == 1.0
    assert kendall_tau(MEASURED, {name: 1 / rate for name, rate in MEASURED.items()}).tau == -1.0


def test_one_swapped_pair_of_six_costs_a_third_and_is_named() -> None:
    got = kendall_tau(MEASURED, {**MEASURED, "b": 301.0, "c": 299.0})
    assert got.tau == pytest.approx(4 / 6)
    assert got.discordant == (("c", "b"),)


def test_pairs_that_the_machine_cannot_tell_apart_count_for_nothing() -> None:
    near = {"a": 100.0, "b": 100.4, "c": 200.0}
    wrong = {"a": 3.0, "b": 2.0, "c": 4.0}
    got = kendall_tau(near, wrong, resolution=0.005)
    assert (got.tau, got.level, got.pairs) == (1.0, 1, 2)
    assert kendall_tau(near, wrong).tau == pytest.approx(1 / 3)
    assert kendall_tau({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}).tau is None


def test_a_predicted_tie_decides_nothing() -> None:
    assert kendall_tau({"a": 1.0, "b": 2.0}, {"a": 5.0, "b": 5.0}).tau == -1.0


def test_regret_is_what_the_recommendation_gives_away() -> None:
    got = regret(MEASURED, {"a": 1.0, "b": 2.0, "c": 9.0, "d": 8.0})
    assert (got.recommended, got.best, got.share) == ("c", "d", 0.25)
    assert regret(MEASURED, MEASURED).share == 0.0


def test_of_options_predicted_level_the_first_listed_is_recommended() -> None:
    assert regret({"two": 10.0, "three": 11.0}, {"two": 99.7, "three": 100.0}, level=0.005).recommended == "two"
    assert regret({"two": 10.0, "three": 11.0}, {"two": 99.0, "three": 100.0}, level=0.005).recommended == "three"


@pytest.mark.parametrize(
    ("second", "predicted", "apart"),
    [
        ((1, 1, 3, 3), (1, 1, 3, 3), 0),
        ((1, 1, 3, 3), (1, 3, 3, 3), 1),
        ((1, 1, 1, 3), (1, 1, 1, 1), 1),
        ((1, 1, 1, 1), (1, 1, 1, 1), 0),
        ((3, 3, 3, 3), (1, 1, 1, 1), 4),
        ((1, 3, 1, 3), (1, 3, 3, 3), 2),
    ],
)  # fmt: skip
def test_crossovers_lie_so_many_grid_steps_apart(
    second: tuple[float, ...], predicted: tuple[float, ...], apart: int
) -> None:
    assert crossing([2, 2, 2, 2], second, [2, 2, 2, 2], predicted).steps_apart == apart


def test_a_power_law_has_its_exponent_as_slope() -> None:
    assert log_slope((2.0, 2.0**-0.7), (5.0, 5.0**-0.7)) == pytest.approx(-0.7)


@pytest.mark.parametrize("rate", [0.0, math.nan, math.inf, -1.0])
def test_what_cannot_be_compared_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="a: measured"):
        regret({"a": rate}, {"a": 1.0})
    with pytest.raises(ConfigError, match="differ: b"):
        kendall_tau({"a": 1.0}, {"a": 1.0, "b": 2.0})
    with pytest.raises(ConfigError, match="no common grid"):
        crossing([1.0], [1.0, 2.0], [1.0], [1.0])
    with pytest.raises(ConfigError, match="slope"):
        log_slope((1.0, 1.0), (1.0, 2.0))
