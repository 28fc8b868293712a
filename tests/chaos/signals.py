"""Real signals at random moments of a story, in a process of its own: what a signal could break is not another test's.

    python -m tests.chaos.signals --pair 0 --rounds 20 --seed 3

A round is a session that is opened, told the story of seventeen acts and closed; each of these nineteen calls is
given a signal, at a moment drawn from its usual time, and half of them a second one shortly after it. Ends with one
line of JSON, or at the first thing wrong with exit status 1 and the reason; a round that takes longer than --bound
seconds hangs, and every thread says where.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numba
import torch

from sparda_core.runtimes import session as cpu_session
from sparda_core.runtimes.row_session import RowSession
from tests.chaos.cuts import PACKAGE, Cut
from tests.chaos.story import ACTS, PAIRS, Act, Answer, State, opened, retold, told

#: A signal is drawn from this many times an act's usual time: some come too late, and show that the end is right.
SPAN = 1.1
#: Longest that a round may take, and a process; far more than on a busy machine. Less than `conftest.BOUND_S`.
ROUND_S, PROCESS_S = 40.0, 110.0
Opens = Callable[[], RowSession]
_KEPT: list[Any] = []


class Alarms:
    """Counts signals that were heard, and raises Cut for each."""

    def __init__(self) -> None:
        self.heard = self.twice = 0
        self._armed, self._again_s = False, 0.0
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if not self._armed:  # the clock may have run out just before it was stopped
            return
        inside, second = _in_package(frame), self._again_s < 0
        if second and not inside:
            return
        self.heard += 1
        self.twice += second
        # A first signal just before or after the call is its only one.
        again_s, self._again_s = self._again_s, -1.0
        self._armed = inside and again_s > 0
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, again_s)
        raise Cut

    def after(self, seconds: float, again_s: float = 0.0) -> Alarm:
        """A context in which a signal comes so late after its beginning, if it lasts that long.

        again_s  how long after that a second one comes, if code of the package still runs; 0: none does
        """
        return Alarm(self, seconds, again_s)


class Alarm:
    """See `Alarms.after`."""

    def __init__(self, alarms: Alarms, seconds: float, again_s: float) -> None:
        self._alarms, self._seconds, self._again_s = alarms, seconds, again_s

    def __enter__(self) -> None:
        self._alarms._again_s, self._alarms._armed = self._again_s, True
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *failure: object) -> None:
        self._alarms._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def _in_package(frame: FrameType | None) -> bool:
    """Whether a call into the package has not returned yet."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def usual_times(open_session: Opens, acts: dict[str, Act]) -> dict[str, float]:
    """Seconds of each act, and of opening and closing: the median of five stories."""
    took: dict[str, list[float]] = {name: [] for name in ("open", *acts, "close")}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = work()
        took[name].append(time.perf_counter() - start)
        return made

    for _ in range(5):
        session = timed("open", open_session)
        for name, act in acts.items():
            timed(name, functools.partial(act, session))
        timed("close", session.close)
    return {name: sorted(each)[len(each) // 2] for name, each in took.items()}


def insisted(work: Callable[[], Any], alarm: Alarm) -> tuple[Any, int]:
    """What work gives that is done again where a signal cuts it; how often it was cut."""
    try:
        with alarm:
            return work(), 0
    except Cut:
        return work(), 1


def tell(
    open_session: Opens, acts: dict[str, Act], *, rounds: int, seed: int, bound_s: float,
    within: float = 0.0, again: bool = True,
) -> dict[str, int]:  # fmt: skip
    """Tell the story so many times; how many signals were heard, how many calls raised one, and how many met a second.

    again  whether half the calls are given a second one

    Raises AssertionError where a state, an answer or what the process keeps is not as if there had been none.
    """
    with open_session() as session:
        want: tuple[list[Answer], list[State]] = told(session, acts)
    usual, draw, alarms = usual_times(open_session, acts), random.Random(seed), Alarms()  # noqa: S311  a test's
    settings = _settings()
    cut = 0
    for turn in range(rounds):
        faulthandler.dump_traceback_later(bound_s, exit=True)
        late = {name: _drawn(alarms, draw, seconds, again=again) for name, seconds in usual.items()}
        session, more = insisted(open_session, late["open"])
        cut += more
        try:
            cut += retold(
                session, {name: functools.partial(_same, late[name]) for name in acts}, (Cut,), want,
                acts=acts, within=within,
            )  # fmt: skip
        except BaseException as wrong:
            raise AssertionError(f"round {turn} of seed {seed}, after {alarms.heard} signals") from wrong
        cut += insisted(session.close, late["close"])[1]
        assert _settings() == settings, f"round {turn} of seed {seed} left {_settings()}, not {settings}"
    del session
    gc.collect()
    assert not left_lanes(), "a copy lane outlives its session"
    faulthandler.cancel_dump_traceback_later()
    return {"calls": rounds * (len(acts) + 2), "signals": alarms.heard, "raised": cut, "twice": alarms.twice}


def _drawn(alarms: Alarms, draw: random.Random, usual_s: float, *, again: bool) -> Alarm:
    """One signal, or one more while the call gets over the first."""
    return alarms.after(draw.uniform(1e-6, SPAN * usual_s), draw.choice((0.0, again * draw.uniform(1e-5, 1e-3))))


def _same(alarm: Alarm) -> Alarm:
    return alarm


def _settings() -> tuple[Any, ...]:
    """What a session sets in the process for a while."""
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.get_num_threads(), numba.get_num_threads()


def left_lanes() -> list[threading.Thread]:
    """Threads of copy lanes that still live a while after they were told to end."""
    lanes = [thread for thread in threading.enumerate() if thread.name == "sparda-copy-lane"]
    for thread in lanes:
        thread.join(10)
    return [thread for thread in lanes if thread.is_alive()]


def main(stories: Sequence[Opens], acts: dict[str, Act], *, within: float = 0.0, again: bool = True) -> None:
    """See the module: `stories` are what --pair chooses from; `within` and `again` as `tell` takes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=int, default=0, help="which of the pairs of selector and runtime")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound", type=float, default=ROUND_S, help="seconds after which a round hangs")
    parser.add_argument("--leave-mode-on", action="store_true", help="a fault, to see that it is noticed")
    args = parser.parse_args()
    if args.leave_mode_on:
        cpu_session.in_inference = _left_on  # type: ignore[attr-defined]
    found = tell(
        stories[args.pair], acts, rounds=args.rounds, seed=args.seed, bound_s=args.bound, within=within, again=again
    )  # fmt: skip
    sys.stdout.write(json.dumps(found) + "\n")


def _left_on(work: Callable[[], Any]) -> Any:
    """As `in_inference`, but that whatever interrupts the work leaves the mode on."""
    guard = torch._C._InferenceMode(True)
    guard.__enter__()  # type: ignore[no-untyped-call]
    _KEPT.append(guard)  # it would end with its last reference
    made = work()
    guard.__exit__(None, None, None)
    return made


def told_elsewhere(module: str, *given: object) -> dict[str, int]:
    """What `python -m module given...` counted; raises AssertionError with its last words where it found a fault."""
    command = [sys.executable, "-m", module, *map(str, given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{' '.join(command[1:])} did not end within {PROCESS_S:.0f} s") from late
    assert done.returncode == 0, f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-6000:]}"
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


if __name__ == "__main__":
    main([functools.partial(opened, *pair) for pair in PAIRS], ACTS)
