"""Device time of steps and of graphs, by events."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch

from sparda_core.runtimes.gpu.lanes import StreamLanes
from sparda_core.runtimes.gpu.session import GpuSession


def median(values: Sequence[float]) -> float:
    """Median of seconds."""
    return statistics.median(values)


class Clock:
    """Times what a session's compute lane does. The host runs ahead, unless it is what the step waits for."""

    def __init__(self, session: GpuSession) -> None:
        lanes = session.machinery.lanes
        assert isinstance(lanes, StreamLanes), "a clock needs streams"
        self.session, self.lanes = session, lanes

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps in a row, unmodified."""
        return self._between(count, lambda: self.session.run(1))

    def replays(self, graph: torch.cuda.CUDAGraph, count: int) -> list[float]:
        """Seconds of each of `count` replays in a row, the first one left out."""
        self.lanes.step(graph.replay)
        return self._between(count, lambda: self.lanes.step(graph.replay))

    def beside(self, graph: torch.cuda.CUDAGraph, other: torch.cuda.CUDAGraph, times: int) -> float:
        """Seconds of `graph` on the copies' lane while `other` is replayed `times` times on the compute lane."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(self.lanes.compute):
            for _ in range(times):
                other.replay()
        with torch.cuda.stream(self.lanes.h2d):
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _between(self, count: int, issue: Callable[[], None]) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        events[0].record(self.lanes.compute)
        for event in events[1:]:
            issue()
            event.record(self.lanes.compute)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(events)]
