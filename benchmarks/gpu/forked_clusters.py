"""What lone thread blocks of a copy and clusters of them cost products, forked in one graph as in a decode step.

    python -m benchmarks.gpu.forked_clusters --out clusters.json        without a GPU: tiny, interpreted, no times

One set from one process: products of 16, 64 and 256 rows beside 1 to 16 lone thread blocks and beside clusters of two
and four, all with 128 KiB in flight each but sixteen, which have 16 KiB.

Expected: lone blocks of three and more cost a wave, one and two do not; clusters of two sit on whole TPCs, so that one
or two of them cost no wave (132 SMs, 128 for products), four of them and two of four thread blocks do.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.cluster_copy import cluster_gather
from benchmarks.gpu.keep import keep
from benchmarks.gpu.placement import tiny
from sparda_core.bench.gpu_calibration.copies import bytes_for
from sparda_core.bench.gpu_calibration.forked import Compute, Forked, compute_of, replayed
from sparda_core.bench.gpu_calibration.pool import KIB, Pool
from sparda_core.bench.gpu_calibration.products import Weights
from sparda_core.bench.gpu_calibration.sizes import GIB, MIB, Sizes, full
from sparda_core.bench.gpu_clock import Launch, has_gpu

del tests
Row = dict[str, Any]
ROWS = (16, 64, 256)
BLOCK_KIB = 32
#: (clusters, thread blocks of each, KiB in flight of each thread block); lone ones are clusters of one.
COPIES = (
    (1, 1, 128), (2, 1, 128), (3, 1, 128), (4, 1, 128), (8, 1, 128), (16, 1, 16), (1, 2, 128), (2, 2, 128),
    (4, 2, 128), (1, 4, 128), (2, 4, 128),
)  # fmt: skip


def made(pool: Pool, copy: tuple[int, int, int], us: float) -> tuple[Launch, Launch, int]:
    """A copy of about `us`, what gives it a new list, and its bytes."""
    clusters, size, kib = copy
    wanted = bytes_for((clusters * size, kib, BLOCK_KIB), us)
    if size == 1:
        return pool.copy(clusters, kib, BLOCK_KIB, wanted)
    source, target = pool.cut(BLOCK_KIB)
    count = min(target.shape[0], max(16, int(wanted / (BLOCK_KIB * KIB)) // 16 * 16))
    source_ids, target_ids, length = pool.lists(source.shape[0], target.shape[0], count)
    run = functools.partial(
        cluster_gather, source, target, source_ids, target_ids, length, clusters=clusters, size=size,
        in_flight_bytes=kib * KIB,
    )  # fmt: skip

    def renew() -> None:
        fresh = pool.lists(source.shape[0], target.shape[0], count)
        for old, new in zip((source_ids, target_ids), fresh, strict=False):
            old.copy_(new)

    return run, renew, count * BLOCK_KIB * KIB


def check(pool: Pool) -> None:
    """Raise AssertionError unless clusters copy the listed blocks, and no others."""
    source, target = pool.cut(BLOCK_KIB)
    source.view(torch.int32).flatten(1)[:, 0] = torch.arange(source.shape[0], dtype=torch.int32)
    count = min(target.shape[0] // 2, 200)
    for clusters, size in ((1, 2), (2, 2), (1, 4)):
        target.zero_()
        source_ids, target_ids, length = pool.lists(source.shape[0], target.shape[0], count)
        cluster_gather(source, target, source_ids, target_ids, length, clusters=clusters, size=size)
        want = torch.zeros_like(target)
        want[target_ids.long()] = source[source_ids.long().to(source.device)].to(target.device)
        # As words: memory that nobody wrote may hold what is no number.
        same = torch.equal(target.view(torch.int32), want.view(torch.int32))
        assert same, f"{clusters} clusters of {size} moved other blocks than were listed"


def beside(sizes: Sizes, pool: Pool, compute: Compute, copy: tuple[int, int, int], us: list[float]) -> Row:
    """A copy beside the products of every layer; `us`: of each layer's products alone."""
    each = [made(pool, copy, sizes.forked_us) for _ in compute.layers]
    graph = Forked(compute.layers, [run for run, _, _ in each])
    took, copied = replayed(graph, [renew for _, renew, _ in each], sizes.forked_repeats)
    alone = us * sizes.forked_repeats
    slow = [met / max(1e-9, met - (one - bare)) for one, met, bare in zip(took, copied, alone, strict=True)]
    rates = [each[0][2] / max(1e-9, met) / 1e3 for met in copied]
    clusters, size, kib = copy
    return {
        "rows": compute.rows, "clusters": clusters, "size": size, "in_flight_kib": kib, "bytes": each[0][2],
        "slowdowns": slow, "gb_s": rates,
    }  # fmt: skip


def measure(sizes: Sizes, pool: Pool, tell: Callable[[str], None]) -> list[Row]:
    """Every copy beside products of every number of rows."""
    weights, found = Weights(sizes), []
    for rows in ROWS if has_gpu() else ROWS[:1]:
        compute = compute_of(sizes, "products", rows, weights)
        bare = Forked(compute.layers, None)
        replays = [bare.replay()[0] for _ in range(sizes.forked_repeats + 2)][1:]
        us = [statistics.median(layer) for layer in zip(*replays, strict=True)]
        for copy in COPIES:
            row = beside(sizes, pool, compute, copy, us)
            found.append({**row, "alone_us": us})
            tell(line(row))
    return found


def line(row: Row) -> str:
    """One row in words."""
    name = f"{row['clusters']} x {row['size']}" if row["size"] > 1 else f"{row['clusters']}"
    slow = sorted(row["slowdowns"])
    return (
        f"{row['rows']:4d} rows  {name:>6s} x {row['in_flight_kib']:3d} KiB  {statistics.median(slow):.3f} "
        f"({slow[0]:.3f} to {slow[-1]:.3f})  {statistics.median(row['gb_s']):5.1f} GB/s"
    )


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool-gib", type=float, default=8.0, help="pinned host memory; half a second a GiB to pin")
    parser.add_argument("--out", type=Path, help="where to keep what was measured (JSON)")
    args = parser.parse_args()
    sizes, began = (full() if has_gpu() else tiny()), time.monotonic()
    nbytes = int(args.pool_gib * GIB) // MIB * MIB if has_gpu() else sizes.pool_bytes
    pool = Pool(nbytes, 768 * MIB if has_gpu() else MIB)
    check(pool)
    found = measure(sizes, pool, lambda told: print(f"{time.monotonic() - began:6.1f} s  {told}", flush=True))
    keep(args.out, "copies in clusters beside products, forked", found)


if __name__ == "__main__":
    main()
