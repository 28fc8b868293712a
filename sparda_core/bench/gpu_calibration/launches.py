"""Launching: from kernel to kernel in a graph and eagerly, from graph to graph, across streams, back to the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import (
    between,
    current_stream,
    finish,
    graph_of,
    has_gpu,
    new_mark,
    new_stream,
    on_stream,
    times_us,
)
from sparda_core.kernels.early import AT_END, early_of
from sparda_core.kernels.step.gpu import advance, begin_step

Row = dict[str, Any]
#: Kernels of a graph; launches of an eager run, fewer than a stream takes before the host must wait.
CHAIN, EAGER = 64, 400


def measure(sizes: Sizes) -> list[Row]:
    """Rows of (what, samples in microseconds)."""
    few = max(2, CHAIN if has_gpu() else 2)
    device = device_of()
    tick, counts = (torch.zeros(n, dtype=torch.int32, device=device) for n in (1, 32))
    position = torch.zeros(16, dtype=torch.int32, device=device)
    token = torch.zeros(16, dtype=torch.int64, device=device)

    def small() -> None:
        begin_step(tick, counts)

    def rows(early: int) -> Callable[[], None]:
        return lambda: advance(position, token, token, early=early)

    early = early_of(device, None)
    found = {
        "graph": times_us([small] * few, sizes.replays),
        "graph, rows": times_us([rows(AT_END)] * few, sizes.replays),
        "graph, rows, early": times_us([rows(AT_END), *[rows(early)] * (few - 1)], sizes.replays),
        "graph to graph": _graph_to_graph(small, few, sizes.replays),
        "eager": [_host_us(small) for _ in range(sizes.repeats)],
        "eager, product": [_host_us(_product()) for _ in range(sizes.repeats)],
        "eager, device": _eager_device(small, sizes.replays),
        "two streams": _crossing(small, few, sizes.replays),
        "kernel to host": _to_host(small, sizes.replays),
    }
    return [{"what": what, "us": samples} for what, samples in found.items()]


def _product() -> Callable[[], object]:
    x = torch.zeros(16, 64, device=device_of())
    w, out = torch.zeros(64, 64, device=device_of()), torch.zeros(16, 64, device=device_of())
    return lambda: torch.mm(x, w, out=out)


def _host_us(launch: Callable[[], object]) -> float:
    """Host time of one launch, while the device keeps up or lags behind."""
    count = EAGER if has_gpu() else 2
    launch()
    finish()
    began = time.perf_counter()
    for _ in range(count):
        launch()
    took = time.perf_counter() - began
    finish()
    return took / count * 1e6


def _eager_device(small: Callable[[], None], replays: int) -> list[float]:
    """From kernel to kernel where the host launches each of them."""
    count = EAGER if has_gpu() else 2

    def many() -> None:
        for _ in range(count):
            small()

    many()
    return [between(many) / count for _ in range(replays)]


def _graph_to_graph(small: Callable[[], None], few: int, replays: int) -> list[float]:
    """What the launch of a graph adds: graphs in a row, less one graph of as many kernels."""
    times = 8
    graph, long = graph_of([small] * few), graph_of([small] * (few * times))

    def row() -> None:
        for _ in range(times):
            graph.replay()

    row()
    long.replay()
    return [max(0.0, between(row) - between(long.replay)) / (times - 1) for _ in range(replays)]


def _crossing(small: Callable[[], None], few: int, replays: int) -> list[float]:
    """One kernel in a graph that changes streams before every kernel: both waits, there and back, in every pair."""
    other = new_stream()

    def there_and_back() -> None:
        here = current_stream()
        small()
        other.wait_stream(here)
        with on_stream(other):
            small()
        here.wait_stream(other)

    return [us / 2 for us in times_us([there_and_back] * (few // 2), replays)]


def _to_host(small: Callable[[], None], replays: int) -> list[float]:
    """Host time from the launch of a kernel until the host knows that it has ended."""
    mark, taken = new_mark(), []
    small()
    for _ in range(2 * replays):
        finish()
        began = time.perf_counter()
        small()
        mark.record()
        mark.synchronize()
        taken.append((time.perf_counter() - began) * 1e6)
    return taken
