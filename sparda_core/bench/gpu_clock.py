"""Timing of launches on a GPU: a CUDA graph of many, replayed between two events, medians.

Without a GPU the same calls run one after another by the host's clock: enough to try the code that measures.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Launch = Callable[[], object]


class HostGraph:
    """What stands for a CUDA graph where there is no GPU."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = list(launches)

    def replay(self) -> None:
        """Run them all."""
        for launch in self.launches:
            launch()


class HostStream:
    """What stands for a stream where there is no GPU: everything has ended when its call returns."""

    def wait_event(self, _: object) -> None:
        """Nothing is under way."""

    wait_stream = wait_event

    def synchronize(self) -> None:
        """Nothing is under way."""


class HostMark:
    """What stands for an event where there is no GPU."""

    at_s = 0.0

    def record(self, _: object = None) -> None:
        """Now."""
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        """It has passed."""

    def elapsed_time(self, later: HostMark) -> float:
        """Milliseconds."""
        return (later.at_s - self.at_s) * 1e3


def has_gpu() -> bool:
    """Whether launches go to a GPU."""
    return torch.cuda.is_available()


def new_mark() -> Any:
    """An event that can be timed."""
    return torch.cuda.Event(enable_timing=True) if has_gpu() else HostMark()  # type: ignore[no-untyped-call]


def new_stream(priority: int = 0) -> Any:
    """A stream of its own."""
    return torch.cuda.Stream(priority=priority) if has_gpu() else HostStream()  # type: ignore[no-untyped-call]


def current_stream() -> Any:
    """The stream that launches go to."""
    return torch.cuda.current_stream() if has_gpu() else HostStream()


def on_stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Launches go to this stream meanwhile."""
    return torch.cuda.stream(stream) if has_gpu() else contextlib.nullcontext()


def finish() -> None:
    """Wait until the device has nothing to do."""
    if has_gpu():
        torch.cuda.synchronize()


def graph_of(launches: Sequence[Launch]) -> Any:
    """One graph of all launches in order; each runs once before, so that kernels are compiled and buffers warm.

    Whatever the current stream has under way ends first: tensors that it is still filling are not read. The graph
    keeps the launches, and with them the tensors that it reads and writes, for as long as it lives.
    """
    if not has_gpu():
        return HostGraph(launches)
    stream = new_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for launch in launches:
            launch()
    graph.launches = list(launches)  # type: ignore[attr-defined]
    return graph


def times_us(launches: Sequence[Launch], replays: int = 15) -> list[float]:
    """Microseconds of one launch by each replay of a graph of all of them: its time divided by their number."""
    graph = graph_of(launches)
    graph.replay()
    return [between(graph.replay) / len(launches) for _ in range(replays)]


def median_us(launches: Sequence[Launch], replays: int = 15) -> float:
    """Microseconds of one launch: the median over replays of a graph of all of them, divided by their number."""
    return statistics.median(times_us(launches, replays))


def between(work: Launch, stream: Any = None) -> float:
    """Microseconds between events around `work` on a stream; waits for it."""
    start, end = new_mark(), new_mark()
    stream = stream or current_stream()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
