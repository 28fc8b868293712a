"""Ctrl-C, and memory that runs out, at any moment of a call on a GPU session: made or not made, and it goes on.

Without a GPU kernels take too long for many moments: there a few of the calls that run none are tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from sparda_core.errors import CapacityError
from sparda_core.runtimes.gpu.session import GpuSession
from tests.chaos.cuts import Cut, Place, chosen, cut_at, moments
from tests.chaos.shortage import refused, sites
from tests.chaos.signals import told_elsewhere
from tests.chaos.story import Act, quietly, retold, told
from tests.gpu.session.test_graphs import PAIRS, opened
from tests.gpu.session.worlds import SPEC, prompt
from tests.gpu_env import DEVICE
from tests.profiles import NIGHTLY

ON_GPU = DEVICE.type == "cuda"
#: Moments tried of each act.
MOST = 10_000 if NIGHTLY else 12 if ON_GPU else 2
SHORT = (CapacityError, MemoryError, RuntimeError)
TRIED = [PAIRS[0], PAIRS[2], PAIRS[3]] if ON_GPU else PAIRS[:1]


def step(*tokens: int) -> Act:
    return lambda session: session.decode(dict(zip(session.rows, tokens, strict=True))).logits.clone()


QUICK: dict[str, Act] = {
    "add": quietly(lambda s: s.add()),
    "prefill": lambda s: s.prefill(s.rows[0], prompt(47)),
    "fork": quietly(lambda s: s.fork(s.rows[0])),
    "crop": quietly(lambda s: s.crop(s.rows[0], 37)),
    "adopt": quietly(lambda s: s.adopt(s.snapshot(s.rows[1]))),
    "retire": quietly(lambda s: s.retire(s.rows[0])),
    "step of two": step(5, 6),
}
#: Steps in between are issued, captured and replayed; another budget captures anew.
ACTS: dict[str, Act] = QUICK if not ON_GPU else {
    "add": QUICK["add"], "prefill": QUICK["prefill"], "step": step(5), "captured": step(6), "replayed": step(7),
    "fork": QUICK["fork"], "step of both": step(1, 2), "captured for two": step(3, 4), "crop": QUICK["crop"],
    "step after a crop": step(5, 6), "more blocks": quietly(lambda s: s.set_budget(SPEC.budget + 1)),
    "with more blocks": step(7, 8), "captured again": step(9, 9), "adopt": QUICK["adopt"],
    "step of three": step(1, 2, 3), "retire": QUICK["retire"], "step of the rest": step(3, 1),
    "replayed again": step(4, 1),
}  # fmt: skip
#: What runs kernels is cut on a GPU alone.
CUT = tuple(ACTS) if ON_GPU else tuple(name for name in ACTS if name not in ("prefill", "step of two"))


def fresh(selector: str, runtime: str, options: dict[str, Any]) -> GpuSession:
    return opened(selector, runtime, options, places=4, tokens=160)


def tell(
    pair: tuple[str, str, dict[str, Any]], find: Callable[[Callable[[], Any]], list[Place]],
    spoil: Callable[[int], AbstractContextManager[Any]], failures: tuple[type[BaseException], ...],
) -> tuple[int, int]:  # fmt: skip
    """Tell the story with every act spoilt at several moments; how many were tried, and how many raised."""
    with fresh(*pair) as session:
        want = told(session, ACTS)
    found: dict[str, list[Place]] = {}
    with fresh(*pair) as session:
        for name, act in ACTS.items():
            found[name] = find(functools.partial(act, session)) if name in CUT else []
            if name not in CUT:
                act(session)
    tried = {name: chosen(places, MOST, seed) for seed, (name, places) in enumerate(found.items()) if places}
    failed = 0
    for turn in range(max(map(len, tried.values()))):
        spoilt = {name: turns[turn] for name, turns in tried.items() if turn < len(turns)}
        with fresh(*pair) as session:
            try:
                spoils = {name: functools.partial(spoil, moment) for name, moment in spoilt.items()}
                failed += retold(session, spoils, failures, want, acts=ACTS, within=2e-4)
            except BaseException as wrong:
                where: Mapping[str, Place] = {name: found[name][moment] for name, moment in spoilt.items()}
                raise AssertionError(f"spoilt at {where}") from wrong
    return sum(map(len, tried.values())), failed


@pytest.mark.parametrize("pair", TRIED)
def test_an_interrupt_at_any_moment_leaves_a_call_made_or_not_and_the_session_goes_on(pair: Any) -> None:
    tried, failed = tell(pair, moments, cut_at, (Cut,))
    # What is cut while something is thrown away, Python swallows; and a second run may take fewer calls.
    assert failed > 0.7 * tried


@pytest.mark.parametrize("pair", TRIED)
def test_an_allocation_that_fails_leaves_a_call_unmade_and_the_session_goes_on(pair: Any) -> None:
    tried, failed = tell(pair, sites, refused, SHORT)
    assert failed > 0.7 * tried


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4 if NIGHTLY else 1))
@pytest.mark.parametrize("pair", range(len(TRIED)))
def test_real_signals_at_random_moments_do_no_harm_either(pair: int, seed: int) -> None:
    counted = told_elsewhere("tests.gpu.session.signals", "--pair", pair, "--seed", seed, "--rounds", 10)
    assert counted["raised"] > counted["calls"] / 4, "hardly a signal came in time: the test shows nothing"
