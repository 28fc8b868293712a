"""Memory that runs out at any allocation of any call on a session: the call was not made, and the session goes on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from sparda_core.errors import CapacityError
from tests.chaos.cuts import Place, chosen
from tests.chaos.shortage import refused, sites
from tests.chaos.story import ACTS, PAIRS, opened, plainly, retold
from tests.profiles import NIGHTLY

#: Allocations refused of each act; nightly, every place of the code that makes one.
MOST = 10_000 if NIGHTLY else 4
SHORT = (CapacityError, MemoryError, RuntimeError)


def places_of(selector: str, runtime: str, options: Mapping[str, Any]) -> dict[str, list[Place]]:
    """The allocations of every act."""
    with opened(selector, runtime, options) as session:
        return {name: sites(functools.partial(act, session)) for name, act in ACTS.items()}


@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS)
def test_an_allocation_that_fails_leaves_a_call_unmade_and_the_session_goes_on(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    want, found = plainly(selector, runtime, options), places_of(selector, runtime, options)
    assert all(found[name] for name in ("add", "prefill", "step", "fork", "adopt"))
    tried = {name: chosen(places, MOST, seed) for seed, (name, places) in enumerate(found.items())}
    for turn in range(max(map(len, tried.values()))):
        spoilt = {name: turns[turn] for name, turns in tried.items() if turn < len(turns)}
        with opened(selector, runtime, options) as session:
            try:
                short = {name: functools.partial(refused, number) for name, number in spoilt.items()}
                failed = retold(session, short, SHORT, want)
            except BaseException as wrong:
                where = {name: found[name][number] for name, number in spoilt.items()}
                raise AssertionError(f"refused at {where}") from wrong
        assert failed == len(spoilt)


def test_a_session_that_finds_no_memory_to_open_leaves_nothing_behind() -> None:
    def open_one() -> None:
        opened("forecast", "offload-prefetch", {}).close()

    open_one()
    for number in range(len(sites(open_one))):
        with pytest.raises(SHORT), refused(number):
            open_one()
    open_one()
