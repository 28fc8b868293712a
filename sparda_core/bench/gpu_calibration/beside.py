"""What something on another stream costs a graph of kernels, and how fast it is meanwhile.

One long graph, within which the other one begins and ends. In d seconds of being beside it the graph falls behind by
x, the difference to a run with nothing beside it: what took d - x takes d. The graph is long because launches are no
matter of kernels: the launch of a graph, and every event, fetches from host memory, behind all that a copy over the
link has under way, and graphs that are replayed beside it look slower by that. All of it is enqueued while the stream
is held, so that the host has no say in when what begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_clock import Launch, between, finish, graph_of, has_gpu, new_mark, new_stream, on_stream

#: Prepares a run of the other one, `share` as long as wanted: what launches it, and the bytes that it moves.
Other = Callable[[float], tuple[Launch, float]]
#: Clock ticks: of holding a stream while all is enqueued (some 1.5 ms); from one's start to the other's (some 50 us).
HOLD, LATER = 3_000_000, 100_000
#: The graph is so many times as long as the other one.
TIMES = 3.0
#: Kernels that did not get on at all are told as so many times slower: 1 / _SLOWEST.
_SLOWEST = 1e-3
#: The other one is cut to these shares in turn, until it ends before the graph does.
_SHARES = (1.0, 0.4, 0.15)


@attrs.frozen(kw_only=True)
class Subject:
    """Kernels that something runs beside: `launches` of them in one graph."""

    name: str
    batch: int
    launches: int
    graph: Any

    @classmethod
    def of(
        cls, name: str, batch: int, launches: Sequence[Launch], span_us: float = 0.0, *, first: Sequence[Launch] = ()
    ) -> Subject:
        """Capture them, again and again until the graph takes `span_us`.

        first  what the graph begins with, and what is not counted: kernels that start early need one ahead of them
        """
        once = graph_of([*first, *launches])
        once.replay()
        times = max(1, math.ceil(span_us / between(once.replay))) if has_gpu() else 1
        graph = once if times == 1 else graph_of([*first, *[*launches] * times])
        graph.replay()
        finish()
        return cls(name=name, batch=batch, launches=times * len(launches), graph=graph)

    def alone_us(self, repeats: int) -> list[float]:
        """Microseconds of a launch, by each replay."""
        return [_alone(self) / self.launches for _ in range(repeats)]


@attrs.frozen(kw_only=True)
class Beside:
    """Medians over repetitions; NaN where no repetition was a measure. `launch_us` with nothing beside."""

    slowdown: float
    gb_per_s: float
    launch_us: float
    slowdowns: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


def beside(subject: Subject, other: Other, repeats: int = 5, *, first: bool = False) -> Beside:
    """What the other one does to the subject, and how fast it is beside it.

    first  it is there when the graph begins; else it comes in its midst
    """
    slow: list[float] = []
    rates: list[float] = []
    shares, alones = list(_SHARES), [_alone(subject)]
    while shares and len(slow) < repeats:
        launch, nbytes = other(shares[0])
        took, met, whole = _contended(subject, launch, first=first)
        # In turn, since clocks move: what is compared with is the mean of before and after.
        alones.append(_alone(subject))
        behind = took - (alones[-1] + alones[-2]) / 2
        if met is None:
            shares.pop(0)
            continue
        slow.append(met / max(met - behind, _SLOWEST * met))
        rates.append(nbytes / whole / 1e3)
    alone = statistics.median(alones)
    return Beside(
        slowdown=statistics.median(slow) if slow else math.nan,
        gb_per_s=statistics.median(rates) if rates else math.nan,
        launch_us=alone / subject.launches, slowdowns=tuple(slow), rates=tuple(rates),
    )  # fmt: skip


def _launch(subject: Subject, start: Any, end: Any) -> None:
    start.record()
    subject.graph.replay()
    end.record()


def hold(ticks: int) -> None:
    """Keep the current stream busy for so many ticks of the device's clock."""
    if has_gpu():
        torch.cuda._sleep(ticks)  # type: ignore[no-untyped-call]  # noqa: SLF001  torch has no other name for it


def _alone(subject: Subject) -> float:
    """Microseconds of a replay with nothing beside it."""
    start, end = new_mark(), new_mark()
    finish()
    hold(HOLD)
    _launch(subject, start, end)
    finish()
    return float(start.elapsed_time(end)) * 1e3


def _contended(subject: Subject, other: Launch, *, first: bool) -> tuple[float, float | None, float]:
    """Microseconds of the graph, of its time beside the other one (None: that outlasted it), and of the other one."""
    lane = new_stream(priority=-1)
    free, start, end, begin, done = (new_mark() for _ in range(5))
    finish()
    hold(HOLD)
    free.record()
    if not first:
        # Launched before the other one is, however long the host takes for so long a graph.
        _launch(subject, start, end)
    lane.wait_event(free)
    with on_stream(lane):
        if not first:
            hold(LATER)
        begin.record(lane)
        other()
        done.record(lane)
    if first:
        hold(LATER)
        _launch(subject, start, end)
    finish()
    since = max(start.elapsed_time(begin), 0.0) if first else start.elapsed_time(begin)
    until = start.elapsed_time(done)
    took = start.elapsed_time(end)
    met = None if has_gpu() and (until > took or until <= since) else max(1e-6, (until - since)) * 1e3
    return float(took) * 1e3, met, max(1e-6, float(begin.elapsed_time(done))) * 1e3
