"""How to cut decode attention at small batches: pieces, who adds them up, warps, tiles in flight, tile size.

python -m benchmarks.gpu.attend_sweep [--batches 1 2 4 8 16] [--json FILE]    without a GPU: one layer, interpreted

Kernels are compiled first, in as many processes as there are cores (Triton's cache on disk is shared). Then every
choice is timed by a CUDA graph over layers that outgrow the second-level cache, and the best of each batch printed,
with the best of each number of pieces beside it: what `attend/splitting.py` should choose.

Predicted at batch 1: 6 to 7 us with two launches, the second early: launch 1, position and counts and ids 0.9, keys and
values 2 to 2.5, products and partial results 0.8, the sum 1.3. Two launches before: 12.4 us, of which the sum took
about 4 (three turns of loads that waited for each other).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.attend import HK, MAIN, D, Layers
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import median_us
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.shapes import BlockSpec

DEVICE = tests.gpu_env.DEVICE
PIECES = {
    1: (12, 16, 24, 32, 48, 64, 96), 2: (12, 16, 24, 32, 48, 64), 4: (6, 8, 12, 16, 24, 32, 48), 8: (4, 8, 12, 16, 24),
    16: (2, 4, 6, 8, 12, 16), 28: (2, 4, 5, 7, 9), 64: (1, 2, 3, 4),
}  # fmt: skip
#: (warps, tokens of a tile, tiles in flight).
SHAPES = [
    *itertools.product((4, 8), (64,), (1, 2, 3)), *itertools.product((2, 4), (32,), (2, 3, 5)), (2, 64, 2), (8, 128, 1)
]  # fmt: skip


def choices(batch: int) -> Iterator[Tuning]:
    """What is tried at a batch."""
    for splits, (warps, tokens, depth) in itertools.product(PIECES[batch], SHAPES):
        if splits <= MAIN.budget * MAIN.block // tokens:
            yield Tuning(splits=splits, warps=warps, tokens=tokens, depth=depth, fused_up_to=1)
    yield Tuning()
    for splits in PIECES[batch]:
        yield Tuning(splits=splits, fused_up_to=1, early=False)
        if splits in (4, 8, 12, 16):
            for warps, depth in itertools.product((4, 8), (1, 2)):
                yield Tuning(splits=splits, fused_up_to=16, warps=warps, depth=depth)


def kernels(batches: list[int]) -> list[Tuning]:
    """Choices that bring in every kernel that is compiled apart."""
    seen: set[tuple[object, ...]] = set()
    needed = []
    for tuning in itertools.chain.from_iterable(choices(batch) for batch in batches):
        splits = tuning.splits or 1
        fused = splits if splits <= tuning.fused_up_to else 0
        mine: set[tuple[object, ...]] = {(tuning.warps, tuning.tokens, tuning.depth, tuning.early, fused)}
        mine |= set() if fused else {(max(16, 1 << (splits - 1).bit_length()), tuning.early)}
        if mine - seen:
            needed.append(tuning)
            seen |= mine
    return needed


def compile_some(tunings: list[Tuning]) -> int:
    """Launch each once, in a process of its own."""
    spec = MAIN if DEVICE.type == "cuda" else BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
    layers = Layers(1, spec, torch.bfloat16 if DEVICE.type == "cuda" else torch.float32, layers=1)
    for tuning in tunings:
        layers.launch(0, layers.scratch(tuning))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return len(tunings)


def compile_all(tunings: list[Tuning]) -> None:
    """Fill Triton's cache."""
    workers = max(1, min(14, (os.cpu_count() or 2) - 1))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        list(pool.map(compile_some, [tunings[at::workers] for at in range(workers)]))


def sweep(batch: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Every choice of one batch, best first; the best again, started early (one more kernel to compile)."""
    nbytes = batch * HK * MAIN.budget * 2 * MAIN.block * D * 2
    count = max(2, min(32, 2**29 // nbytes))
    layers = Layers(batch, MAIN, torch.bfloat16, layers=count)

    def timed(tuning: Tuning, early: int) -> dict[str, object]:
        scratch = layers.scratch(tuning)
        launches = [lambda i=i: layers.launch(i % count, scratch, early) for i in range(max(24, count))]
        return {
            "batch": batch, "us": median_us(launches, 7), "floor_us": nbytes / 4.2e6,
            "splits": tuning.splits,
            "warps": tuning.warps, "tokens": tuning.tokens, "depth": tuning.depth,
            "fused": tuning.splits is not None and tuning.splits <= tuning.fused_up_to,
            "early": tuning.early, "starts_early": early,
        }  # fmt: skip

    tried = sorted(((timed(tuning, 0), tuning) for tuning in choices(batch)), key=lambda pair: pair[0]["us"])
    rows = [row for row, _ in tried]
    # What an early start of attention itself adds, after a kernel that is attention, too.
    return rows, [timed(tuning, 1) for _, tuning in tried[:1]]


def report(rows: list[dict[str, object]], started_early: list[dict[str, object]]) -> None:
    """The five best of a batch, and the best of each number of pieces, two launches or one, early or not."""
    parts = {"best": rows[:5], "started": started_early, "by pieces": _firsts(rows, "splits", "fused", "early")}
    parts["the rule"] = [row for row in rows if row["splits"] is None]
    for title, some in parts.items():
        for row in some:
            how = "fused" if row["fused"] else "early sum" if row["early"] else "sum"
            print(
                f"batch {row['batch']:3d} {title:9s} {row['us']:7.2f} us (floor {row['floor_us']:6.2f})"
                f"  splits {row['splits'] or 'rule':>4} {how:9s} warps {row['warps']}"
                f" tokens {row['tokens']} depth {row['depth']}",
                flush=True,
            )


def _firsts(rows: list[dict[str, object]], *names: str) -> list[dict[str, object]]:
    """The first row of each combination of values."""
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), row)
    return list(found.values())


def main() -> None:
    """Compile, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16], help=f"among {sorted(PIECES)}")
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    if DEVICE.type != "cuda":
        print(f"{compile_some([Tuning(splits=2), Tuning(splits=2, fused_up_to=1)])} choices ran")
        return
    began = time.perf_counter()
    compile_all(kernels(args.batches))
    print(f"{len(kernels(args.batches))} kernels compiled in {time.perf_counter() - began:.1f} s", flush=True)
    rows = []
    for batch in args.batches:
        plain, early = sweep(batch)
        report(plain, early)
        rows.append(plain + early)
    print(f"{sum(map(len, rows))} choices in {time.perf_counter() - began:.1f} s")
    keep(args.json, "attention of one token: how its lists are cut", list(itertools.chain.from_iterable(rows)))


if __name__ == "__main__":
    main()
