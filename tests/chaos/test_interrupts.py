"""Ctrl-C at any moment of any call on a session: the call was made or it was not, and the session goes on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from tests.chaos.cuts import Cut, Place, chosen, cut_at, moments
from tests.chaos.signals import told_elsewhere
from tests.chaos.story import ACTS, PAIRS, opened, plainly, retold
from tests.profiles import NIGHTLY

SIGNALS = "tests.chaos.signals"
#: Moments tried of each act; nightly, every place of the code.
MOST = 10_000 if NIGHTLY else 4


def places_of(selector: str, runtime: str, options: Mapping[str, Any]) -> dict[str, list[Place]]:
    """The moments of every act."""
    with opened(selector, runtime, options) as session:
        return {name: moments(functools.partial(act, session)) for name, act in ACTS.items()}


# A cut while a generator is thrown away: Python swallows it and says so.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <generator:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS)
def test_an_interrupt_at_any_moment_leaves_a_call_made_or_not_and_the_session_goes_on(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    want, found = plainly(selector, runtime, options), places_of(selector, runtime, options)
    tried = {name: chosen(places, MOST, seed) for seed, (name, places) in enumerate(found.items())}
    failed = 0
    for turn in range(max(map(len, tried.values()))):
        spoilt = {name: turns[turn] for name, turns in tried.items() if turn < len(turns)}
        with opened(selector, runtime, options) as session:
            try:
                cuts = {name: functools.partial(cut_at, moment) for name, moment in spoilt.items()}
                failed += retold(session, cuts, (Cut,), want)
            except BaseException as wrong:
                where = {name: found[name][moment] for name, moment in spoilt.items()}
                raise AssertionError(f"cut at {where}") from wrong
    assert failed > 0.9 * sum(map(len, tried.values()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10 if NIGHTLY else 1))
@pytest.mark.parametrize("pair", range(len(PAIRS)))
def test_real_signals_at_random_moments_do_no_harm_either(pair: int, seed: int) -> None:
    """Python code that is not ours among the moments, too."""
    counted = told_elsewhere(SIGNALS, "--pair", pair, "--seed", seed, "--rounds", 60 if NIGHTLY else 6)
    assert counted["raised"] > counted["calls"] / 4, "hardly a signal came in time: the test shows nothing"


@pytest.mark.slow
def test_real_signals_show_a_mode_that_they_leave_on() -> None:
    """The companion: what the test above looks at does differ."""
    with pytest.raises(AssertionError, match=r"of seed 0 left \(True"):
        told_elsewhere(SIGNALS, "--leave-mode-on")
