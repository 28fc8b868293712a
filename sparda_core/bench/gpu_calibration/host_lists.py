"""Copies whose list the host must see, in running steps: what cuts, lists, submitting and gathering cost, by blocks."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.host_steps import HostSteps
from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.session_lists import SessionLists, layout_of
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.bench.gpu_clock import finish, has_gpu, new_mark, new_stream, on_stream
from sparda_core.runtimes.gpu.block_copies import copy_blocks
from sparda_core.runtimes.gpu.engines import CopyEngine, CpuGather, HostListEngine
from sparda_core.segments import AT_ONCE

Row = dict[str, Any]
#: Pieces of one call that are tried; the runtime's own number is one of them.
TRIED = (16, 32, 64, 128, 256, 4096)
#: Most times that a host is given to settle; it has settled when its time is more than this share of the last one.
_SETTLING, _SETTLED = 20, 0.95
#: About 5 ms, in which the host submits any list.
_HELD_CYCLES = 10_000_000


def measure(sizes: Sizes, pool: Pool) -> list[Row]:
    """Rows of (what, blocks, samples in microseconds); all but those of single calls are of one layer of a step.

    What is listed lies where a session's lists would (`session_lists.py`).


    whole               the same kernels as one graph, without lists and copies; `threads`: that torch gathers with
    ENGINE, sync        a step whose copies are awaited at once; of 0 blocks: what cuts alone cost
    ENGINE, prefetch    the same where each is awaited a layer later
    ENGINE, ..., list   host time of waiting for the list and reading it; ..., move: of gathering and submitting;
                        ..., rest: of issuing everything else, which is a segment, its mark and what waits for the copy
    calls               the host's time of a list by calls of `at_once` pieces, and `device`: until all have arrived;
                        `engine`: the same where all were submitted before the first could move
    """
    settle(sizes, pool)
    rows: list[Row] = [
        {"what": "whole", "blocks": 0, "threads": torch.get_num_threads(), "us": _whole(sizes, pool)}
    ]
    counts = [min(blocks, pool.cut(sizes.block_kib)[1].shape[0]) for blocks in (0, *sizes.list_blocks)]
    for engine in (CopyEngine, CpuGather):
        for early in (False, True):
            for count in counts:
                rows += _steps(sizes, pool, engine(), count, early=early)
    for count in counts[-2:]:
        for at_once in TRIED:
            for what, us in zip(("calls", "calls, device"), _calls(sizes, pool, count, at_once), strict=True):
                rows.append({"what": what, "blocks": count, "at_once": at_once, "us": us})
        moved = _calls(sizes, pool, count, AT_ONCE, held=True)[1]
        rows.append({"what": "calls, engine", "blocks": count, "at_once": AT_ONCE, "us": moved})
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


def settle(sizes: Sizes, pool: Pool) -> None:
    """Steps until the host's time of one falls no more: on a host that has just pinned memory it takes seconds to."""
    before = math.inf
    for _ in range(_SETTLING):
        with _opened(HostSteps(sizes, pool, CopyEngine(), min(sizes.list_blocks), early=True)) as steps:
            now = statistics.median(steps.step()[1] for _ in range(sizes.replays))
        if now > before * _SETTLED:
            return
        before = now


def _calls(
    sizes: Sizes, pool: Pool, count: int, at_once: int, *, held: bool = False
) -> tuple[list[float], list[float]]:
    """Host time of submitting a list in calls of so many pieces, and microseconds until all have arrived.

    held  nothing moves before all are submitted, and from then on the device's time counts
    """
    source, target = pool.cut(sizes.block_kib)
    layout = layout_of(sizes, source.shape[0], target.shape[0], 1)
    drawn, host, device, lane = SessionLists(sizes, layout, layers=1, count=count), [], [], new_stream()
    for _ in range(sizes.replays + 1):
        ((source_ids, target_ids),) = drawn.step()
        ids = source_ids.astype(np.int64), target_ids.astype(np.int64)
        start, end = new_mark(), new_mark()
        finish()
        # The driver takes no batch of copies on its default stream.
        with on_stream(lane):
            if held and has_gpu():
                torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  a kernel that waits
            start.record(lane)
            began = time.perf_counter()
            copy_blocks(source, target, *ids, at_once=at_once)
            host.append((time.perf_counter() - began) * 1e6)
            end.record(lane)
        finish()
        device.append(float(start.elapsed_time(end)) * 1e3)
    return host[1:], device[1:]
