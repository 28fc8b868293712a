"""Ctrl-C at any moment of any call on a session: the call was made or it was not, and the session goes on."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.chaos.cuts import NIGHTLY, Cut, Place, alarm_after, chosen, cut_at, moments
from tests.chaos.story import ACTS, PAIRS, opened, plainly, retold

#: Moments tried of each act; nightly, every place of the code.
MOST = 10_000 if NIGHTLY else 4


def places_of(selector: str, runtime: str, options: Mapping[str, Any]) -> dict[str, list[Place]]:
    """The moments of every act."""
    with opened(selector, runtime, options) as session:
        return {name: moments(functools.partial(act, session)) for name, act in ACTS.items()}


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
    # What is cut while a generator is thrown away, Python swallows.
    assert failed > 0.9 * sum(map(len, tried.values()))


@pytest.mark.skipif(not NIGHTLY, reason="a signal inside of Python's own lock or of numba's dispatcher does harm")
@pytest.mark.xfail(reason="a Condition of Python's stays locked; numba raises SystemError; torch stays in its mode")
@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS[:2])
def test_real_signals_at_random_moments_do_no_harm_either(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    want, draw = plainly(selector, runtime, options), random.Random(11)  # noqa: S311  a test's
    failed = 0
    for _ in range(400 if NIGHTLY else 8):
        # A story takes some tens of milliseconds of processor time; an act, up to ten.
        alarms = {name: functools.partial(alarm_after, draw.uniform(1e-5, 5e-3)) for name in ACTS}
        with opened(selector, runtime, options) as session:
            failed += retold(session, alarms, (Cut,), want)
    assert failed, "no signal came in time: the test shows nothing"
