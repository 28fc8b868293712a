"""Copies whose list the host must see: what the list, the submission and the host's own gather cost, by blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import finish, graph_of, new_mark, new_stream, on_stream
from sparda_core.kernels.step.gpu import begin_step
from sparda_core.runtimes.gpu.engines import CopyEngine, CpuGather, HostListEngine

Row = dict[str, Any]


def measure(sizes: Sizes, pool: Pool) -> list[Row]:
    """Rows of (what, blocks, samples in microseconds)."""
    source, target = pool.cut(sizes.block_kib)
    rows: list[Row] = [{"what": "graph", "blocks": 0, "us": _graph_launch(pool, sizes.replays)}]
    for blocks in sizes.list_blocks:
        count = min(blocks, target.shape[0])
        rows.append({"what": "list", "blocks": count, "us": _lists(pool, count, sizes.replays)})
        for engine in (CopyEngine(), CpuGather()):
            host, whole = _moves(engine, source, target, count, sizes.replays)
            rows.append({"what": f"{engine.name}, host", "blocks": count, "us": host})
            rows.append({"what": engine.name, "blocks": count, "us": whole})
    return [{**row, "bytes": row["blocks"] * source[0].nbytes} for row in rows]


def _moves(
    engine: HostListEngine, source: torch.Tensor, target: torch.Tensor, count: int, replays: int
) -> tuple[list[float], list[float]]:
    """Host time of issuing the copy of `count` blocks, and the device's time for it from its submission on."""
    made, host, whole = np.random.default_rng(count), [], []
    lane = new_stream()
    for _ in range(replays + 1):
        ids = made.integers(0, source.shape[0], count), made.permutation(target.shape[0])[:count]
        start, end = new_mark(), new_mark()
        finish()
        # The driver takes no batch of copies on its default stream.
        with on_stream(lane):
            start.record(lane)
            began = time.perf_counter()
            engine.move(source, target, *ids)
            host.append((time.perf_counter() - began) * 1e6)
            end.record(lane)
        finish()
        whole.append(float(start.elapsed_time(end)) * 1e3)
    return host[1:], whole[1:]


def _lists(pool: Pool, count: int, replays: int) -> list[float]:
    """Host time until the list that a kernel made is in the host's hands: the steps of `HostListEngine.fetch`."""
    ids = torch.arange(2 * count, dtype=torch.int32, device=pool.device)
    length = torch.full((1,), count, dtype=torch.int32, device=pool.device)
    taken = []
    for _ in range(replays + 1):
        finish()
        length.fill_(count)
        began = time.perf_counter()
        told = int(length.cpu())
        both = torch.stack((ids[:told], ids[count : count + told])).cpu().numpy().astype(np.int64)
        taken.append((time.perf_counter() - began) * 1e6)
        assert both.shape == (2, count)
    return taken[1:]


def _graph_launch(pool: Pool, replays: int) -> list[float]:
    """Host time of launching a graph of 32 kernels."""
    tick, counts = (torch.zeros(n, dtype=torch.int32, device=pool.device) for n in (1, 32))
    small: Callable[[], None] = lambda: begin_step(tick, counts)  # noqa: E731
    graph, taken = graph_of([small] * 32), []
    for _ in range(replays):
        finish()
        began = time.perf_counter()
        graph.replay()
        taken.append((time.perf_counter() - began) * 1e6)
    return taken
