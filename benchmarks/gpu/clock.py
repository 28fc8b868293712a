"""Timing of launches on a GPU: a CUDA graph of many, replayed between two events, medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch


def graph_of(launches: Sequence[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    """One graph of all launches in order; each runs once before, so that kernels are compiled and buffers warm.

    Whatever the current stream has under way ends first: tensors that it is still filling are not read. The graph
    keeps the launches, and with them the tensors that it reads and writes, for as long as it lives.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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


def median_us(launches: Sequence[Callable[[], None]], replays: int = 15) -> float:
    """Microseconds of one launch: the median over replays of a graph of all of them, divided by their number."""
    graph = graph_of(launches)
    graph.replay()
    return statistics.median(between(graph.replay) for _ in range(replays)) / len(launches)


def between(work: Callable[[], None], stream: torch.cuda.Stream | None = None) -> float:
    """Microseconds between events around `work` on a stream; waits for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = stream or torch.cuda.current_stream()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
