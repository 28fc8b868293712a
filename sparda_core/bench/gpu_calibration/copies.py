"""The link: the copy engine by size, number of pieces and direction; the gather by thread blocks, bytes and lists."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.pool import KIB, Pool, check
from sparda_core.bench.gpu_calibration.sizes import Copy, Sizes
from sparda_core.bench.gpu_clock import between, finish, graph_of, has_gpu, new_mark, new_stream, on_stream
from sparda_core.runtimes.gpu.block_copies import copy_blocks

Row = dict[str, Any]
#: Copies of one graph.
CHAIN = 4


def by_engine(sizes: Sizes, pool: Pool) -> list[Row]:
    """Single copies each way and both ways by size; many pieces of one call by size and number."""
    largest = min(pool.host.numel() // 2, pool.slots.numel() // 2)
    rows = []
    for nbytes in [size for size in sizes.sizes if size <= largest]:
        up, down = one_way(pool, nbytes, up=True), one_way(pool, nbytes, up=False)
        for way, copy in (("h2d", up), ("d2h", down)):
            copy()
            rows.append(_engine_row(way, nbytes, [between(copy) for _ in range(sizes.repeats)]))
        rows.append(_engine_row("both", nbytes, [both_ways(up, down) for _ in range(sizes.repeats)]))
    many = [(piece, count) for piece in sizes.pieces for count in sizes.counts if piece * count <= largest]
    return rows + [
        _engine_row("h2d", piece * count, _batch(pool, piece, count, sizes.repeats), pieces=count)
        for piece, count in many
    ]


def by_all_gpus(sizes: Sizes, pool: Pool) -> list[Row]:
    """One row: every GPU of this machine copies `bytes` each way at once, `us` until all are done; none for one GPU."""
    count = torch.cuda.device_count() if has_gpu() else 1
    if count < 2:
        return []
    nbytes = min(max(sizes.sizes), pool.host.numel() // (2 * count))
    host = pool.host[: 2 * count * nbytes].view(count, 2, nbytes)
    lanes = [lane for number in range(count) for lane in _two_lanes(number, host[number])]
    us = [_all_at_once(lanes) for _ in range(sizes.repeats + 1)][1:]
    return [{"what": "all gpus", "gpus": count, "bytes": nbytes, "us": us}]


def _two_lanes(number: int, host: torch.Tensor) -> list[tuple[Any, Callable[[], object]]]:
    """(stream, copy) of one GPU: the first half of `host` up, another half of the device's down into the second."""
    with torch.cuda.device(number):
        slots = torch.empty_like(host, device=f"cuda:{number}")
        return [
            (new_stream(), lambda: slots[0].copy_(host[0], non_blocking=True)),
            (new_stream(), lambda: host[1].copy_(slots[1], non_blocking=True)),
        ]


def _all_at_once(lanes: list[tuple[Any, Callable[[], object]]]) -> float:
    """Microseconds by the host's clock, for streams of several GPUs: launches take little beside such copies."""
    began = time.perf_counter()
    for stream, copy in lanes:
        with on_stream(stream):
            copy()
    for stream, _ in lanes:
        stream.synchronize()
    return (time.perf_counter() - began) * 1e6


def _engine_row(way: str, nbytes: int, us: list[float], *, pieces: int = 1) -> Row:
    return {"way": way, "bytes": nbytes, "pieces": pieces, "us": us}


def one_way(pool: Pool, nbytes: int, *, up: bool) -> Callable[[], object]:
    """A copy of the first half up, or of the second half down, so that both may go on at once."""
    half, slots = pool.host.numel() // 2, pool.slots.numel() // 2
    if up:
        return lambda: pool.slots[:nbytes].copy_(pool.host[:nbytes], non_blocking=True)
    return lambda: pool.host[half : half + nbytes].copy_(pool.slots[slots : slots + nbytes], non_blocking=True)


def both_ways(up: Callable[[], object], down: Callable[[], object]) -> float:
    """Microseconds until both are done that began together."""
    lanes, ends, start = [new_stream(), new_stream()], [new_mark(), new_mark()], new_mark()
    finish()
    start.record()
    for lane, end, copy in zip(lanes, ends, (up, down), strict=True):
        lane.wait_event(start)
        with on_stream(lane):
            copy()
            end.record(lane)
    finish()
    return float(max(start.elapsed_time(end) for end in ends)) * 1e3


def _batch(pool: Pool, piece: int, count: int, repeats: int) -> list[float]:
    """Microseconds of one call that moves random pieces, its submission counted."""
    source, target = (memory[: memory.numel() // piece * piece].view(-1, piece) for memory in (pool.host, pool.slots))
    made, taken, lane = np.random.default_rng(piece + count), [], new_stream()
    for _ in range(repeats + 1):
        ids = made.integers(0, source.shape[0], count), made.permutation(target.shape[0])[:count]
        finish()
        # The driver takes no batch of copies on its default stream.
        with on_stream(lane):
            taken.append(between(functools.partial(copy_blocks, source, target, *ids), lane))
    return taken[1:]


def by_gather(sizes: Sizes, pool: Pool) -> list[Row]:
    """Copies with nothing beside them: a graph of some, on lists renewed before every replay, or never."""
    check(pool)
    rows = [_gather(sizes, pool, copy, repeated=False) for copy in sizes.alone]
    return rows + [_gather(sizes, pool, copy, repeated=True) for copy in sizes.repeated]


def _gather(sizes: Sizes, pool: Pool, copy: Copy, *, repeated: bool) -> Row:
    ctas, in_flight, block = copy
    copies = [pool.copy(ctas, in_flight, block, sizes.list_bytes) for _ in range(CHAIN)]
    graph, taken = graph_of([run for run, _, _ in copies]), []
    for _ in range(sizes.repeats + repeated):
        for _, renew, _ in () if repeated else copies:
            renew()
        finish()
        taken.append(between(graph.replay) / CHAIN)
    nbytes = copies[0][2]
    rates = [nbytes / us / 1e3 for us in taken[repeated:]]
    return {
        "ctas": ctas, "in_flight_kib": in_flight, "block_kib": block, "repeated": repeated,
        "gb_s": statistics.median(rates), "samples": rates, "bytes": nbytes, "pool_bytes": pool.host.numel(),
    }  # fmt: skip


def guess_us(copy: Copy, nbytes: float) -> float:
    """About how long a copy takes: bytes in flight over a round trip, until a link of the fastest kind is full."""
    ctas, in_flight, _ = copy
    rate = min(50e3, ctas * in_flight * KIB / (2.1 + in_flight * KIB / 110e3))
    return nbytes / rate


def bytes_for(copy: Copy, us: float) -> float:
    """Bytes that take about so long."""
    return us / guess_us(copy, 1.0)
