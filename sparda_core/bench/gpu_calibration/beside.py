"""What something long on another stream costs a graph of kernels, and how fast it is while they run all the time.

The graph is replayed again and again, an event between replays. The other one begins on a stream of its own when a
replay has ended, and ends while replays still run. Its speed is its bytes over the time between its own events (so
waiting for a free multiprocessor counts); the slowdown is the median time of replays that lie wholly within that
time, over the median of replays with nothing beside them, taken in turn. Where it is to be there `first`, the
replays begin some time after it has found its multiprocessors.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_clock import Launch, finish, graph_of, has_gpu, new_mark, new_stream, on_stream

#: Clock ticks for which the replays are held back where the other one is to be there first: some 25 us.
HEAD_START = 50_000
#: Replays behind one time with nothing beside them, and one more, which is not counted.
_REPLAYS = 5


@attrs.frozen(kw_only=True)
class Subject:
    """Kernels that something runs beside: `launches` of them, one graph."""

    name: str
    batch: int
    launches: int
    graph: Any

    @classmethod
    def of(cls, name: str, batch: int, launches: list[Launch]) -> Subject:
        """Capture them."""
        return cls(name=name, batch=batch, launches=len(launches), graph=graph_of(launches))

    def replays(self, count: int) -> list[Any]:
        """Enqueue `count` replays; events around them, one more than replays."""
        marks = [new_mark() for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self.graph.replay()
            mark.record()
        return marks


@attrs.frozen(kw_only=True)
class Beside:
    """Medians over repetitions. Times are those of a replay; NaN where no repetition was a measure."""

    slowdown: float
    gb_per_s: float
    alone_us: float
    slowdowns: tuple[float, ...]
    rates: tuple[float, ...]


def beside(
    subject: Subject, other: Callable[[], Launch], nbytes: float, guess_us: float, repeats: int = 5, *,
    first: bool = False,
) -> Beside:  # fmt: skip
    """What `other`, which moves `nbytes` in about `guess_us`, does to the subject; called, it prepares a fresh one."""
    _alone(subject)
    enough = 4 + 2 * int(guess_us / _alone(subject)) if has_gpu() else 1
    pairs: list[tuple[float, float, float]] = []
    for _ in range(3 * repeats if has_gpu() else 1):
        alone, (contended, took, outlasted) = _alone(subject), _contended(subject, other(), enough, first=first)
        enough *= 2 if outlasted else 1
        # A host that was busy elsewhere may have enqueued replays when the other one had ended: no measure.
        if contended and not outlasted:
            pairs.append((alone, statistics.median(contended), took))
        if len(pairs) == repeats:
            break
    slow = tuple(contended / alone for alone, contended, _ in pairs)
    rates = tuple(nbytes / took / 1e3 for _, _, took in pairs)
    return Beside(
        slowdown=statistics.median(slow) if slow else math.nan,
        gb_per_s=statistics.median(rates) if rates else math.nan,
        alone_us=statistics.median(alone for alone, _, _ in pairs) if pairs else _alone(subject),
        slowdowns=slow, rates=rates,
    )  # fmt: skip


def _alone(subject: Subject) -> float:
    """Microseconds of a replay with nothing beside it."""
    finish()
    marks = subject.replays(_REPLAYS if has_gpu() else 2)
    finish()
    return statistics.median(_between(marks)[1:])


def _contended(subject: Subject, other: Launch, replays: int, *, first: bool) -> tuple[list[float], float, bool]:
    """Microseconds of the replays wholly beside the other one, and of it; whether it ran longer than all replays."""
    lane = new_stream(priority=-1)
    begin, end = new_mark(), new_mark()
    finish()
    if not first:
        lane.wait_event(subject.replays(1)[-1])
    begin.record(lane)
    with on_stream(lane):
        other()
    end.record(lane)
    if first and has_gpu():
        torch.cuda.current_stream().wait_event(begin)
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]  # noqa: SLF001  no other name for it in torch
    marks = subject.replays(replays)
    finish()
    times, took = [begin.elapsed_time(mark) for mark in marks], begin.elapsed_time(end)
    within = [(until - at) * 1e3 for at, until in itertools.pairwise(times) if at >= 0 and until <= took]
    return within, took * 1e3, has_gpu() and times[-1] < took


def _between(marks: list[Any]) -> list[float]:
    """Microseconds between events in a row."""
    return [at.elapsed_time(until) * 1e3 for at, until in itertools.pairwise(marks)]
