"""Copies whose list the host must see, in running steps: what cuts, lists, submitting and gathering cost, by blocks."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparda_core.bench.gpu_calibration.host_steps import HostSteps
from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import finish, new_mark, new_stream, on_stream
from sparda_core.runtimes.gpu.block_copies import copy_blocks
from sparda_core.runtimes.gpu.engines import CopyEngine, CpuGather, HostListEngine

Row = dict[str, Any]
#: Pieces of one call that are tried; the runtime's own number is one of them.
AT_ONCE = (16, 32, 64, 128, 256, 4096)


def measure(sizes: Sizes, pool: Pool) -> list[Row]:
    """Rows of (what, blocks, samples in microseconds); all but those of single calls are of one layer of a step.

    whole               the same kernels as one graph, without lists and copies
    ENGINE, sync        a step whose copies are awaited at once; of 0 blocks: what cuts alone cost
    ENGINE, prefetch    the same where each is awaited a layer later
    ENGINE, ..., list   host time of waiting for the list; ..., move: of gathering and submitting;
                        ..., rest: of issuing everything else, which is a segment and the question for the next list
    calls               the host's time of a list by calls of `at_once` pieces, and `device`: until all have arrived
    """
    rows: list[Row] = [{"what": "whole", "blocks": 0, "us": _whole(sizes, pool)}]
    counts = [min(blocks, pool.cut(sizes.block_kib)[1].shape[0]) for blocks in (0, *sizes.list_blocks)]
    for engine in (CopyEngine, CpuGather):
        for early in (False, True):
            for count in counts:
                rows += _steps(sizes, pool, engine(), count, early=early)
    rows += [row for count in counts[-2:] for at_once in AT_ONCE for row in _calls(sizes, pool, count, at_once)]
    bytes_each = pool.cut(sizes.block_kib)[0][0].nbytes
    return [{**row, "bytes": row["blocks"] * bytes_each} for row in rows]


@contextlib.contextmanager
def _opened(steps: HostSteps) -> Iterator[HostSteps]:
    try:
        yield steps
    finally:
        steps.close()


def _whole(sizes: Sizes, pool: Pool) -> list[float]:
    with _opened(HostSteps(sizes, pool, CopyEngine(), 0, early=False, copies=False)) as steps:
        return [steps.step()[0] / steps.layers for _ in range(sizes.replays)]


def _steps(sizes: Sizes, pool: Pool, engine: HostListEngine, count: int, *, early: bool) -> list[Row]:
    found: dict[str, list[float]] = {"": [], ", list": [], ", move": [], ", rest": []}
    with _opened(HostSteps(sizes, pool, engine, count, early=early)) as steps:
        for _ in range(sizes.replays):
            device_us, issued = steps.step()
            heard, moved = (statistics.fmean(part) for part in (steps.heard, steps.moved))
            found[""].append(device_us / steps.layers)
            found[", list"].append(heard * 1e6)
            found[", move"].append(moved * 1e6)
            found[", rest"].append((issued / steps.layers - heard - moved) * 1e6)
        steps.check()
    name = f"{engine.name}, {'prefetch' if early else 'sync'}"
    return [{"what": name + what, "blocks": count, "us": us} for what, us in found.items()]


def _calls(sizes: Sizes, pool: Pool, count: int, at_once: int) -> list[Row]:
    """Host time of submitting random blocks in calls of so many pieces, and until all have arrived."""
    source, target = pool.cut(sizes.block_kib)
    made, host, device, lane = np.random.default_rng(count + at_once), [], [], new_stream()
    for _ in range(sizes.replays + 1):
        ids = made.integers(0, source.shape[0], count), made.permutation(target.shape[0])[:count]
        start, end = new_mark(), new_mark()
        finish()
        # The driver takes no batch of copies on its default stream.
        with on_stream(lane):
            start.record(lane)
            began = time.perf_counter()
            copy_blocks(source, target, *ids, at_once=at_once)
            host.append((time.perf_counter() - began) * 1e6)
            end.record(lane)
        finish()
        device.append(float(start.elapsed_time(end)) * 1e3)
    row = {"blocks": count, "at_once": at_once}
    return [{"what": "calls", **row, "us": host[1:]}, {"what": "calls, device", **row, "us": device[1:]}]
