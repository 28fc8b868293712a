"""Interrupts: where a Ctrl-C can come in, counted, so that each moment can be tried. Real signals: `signals.py`.

The interpreter looks for signals where a function begins and where a call has returned. A profiler is told of just
these, so an error raised there unwinds as a real Ctrl-C would.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import sparda_core

PACKAGE = str(Path(sparda_core.__file__).parent)
#: Events of a profiler after which signals are looked for, in the frame that the profiler is given.
_MOMENTS = ("call", "c_return")
Place = tuple[str, int]


class Cut(KeyboardInterrupt):
    """A Ctrl-C of ours."""


@contextlib.contextmanager
def watched(seen: Callable[[Place], None]) -> Iterator[None]:
    """Call `seen` with the place (file and line) of every moment inside the package, on this thread."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event in _MOMENTS and frame.f_code.co_filename.startswith(PACKAGE):
            seen((frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def cut_at(moment: int) -> Iterator[None]:
    """Ctrl-C at the given moment, counted from 0; once."""
    left = moment

    def count(_: Place) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise Cut

    with watched(count):
        yield


def moments(work: Callable[[], Any]) -> list[Place]:
    """The places of all moments of some work, in order."""
    places: list[Place] = []
    with watched(places.append):
        work()
    return places


def chosen(places: list[Place], most: int, seed: int) -> list[int]:
    """Moments to try: each place once, at a moment of its own choice, and no more than `most`."""
    draw = random.Random(seed)  # noqa: S311  a test's
    by_place: dict[Place, list[int]] = {}
    for moment, place in enumerate(places):
        by_place.setdefault(place, []).append(moment)
    each = [draw.choice(found) for found in by_place.values()]
    return sorted(each if len(each) <= most else draw.sample(each, most))
