"""Decode attention by rows and pieces: whole rounds of thread blocks against cuts that begin another.

python -m benchmarks.gpu.attend_rounds [--out FILE] [--rows 20 24 ...] [--dense 16 ...]   without a GPU: two tiny cases

At every number of rows the cut that the rule takes, the cut that it took before it counted rounds (BEFORE) and 1 to 16
pieces, as far as they stay within six rounds, are checked against float64 and then timed in turn: a graph each over
layers that outgrow the second-level cache, graphs replayed one after the other and around again, medians. Kernels are
compiled first, in several processes.

Predicted by the constants that the first table gave (2026-11-30-attention-rounds-h200.json), microseconds of a layer,
before -> now, for rows that it lacks: 96 blocks, 36 rows 65 -> 59, 68 123 -> 107, 104 161 -> 152, 136 218 -> 202, 144
214 -> 211, 176 259 -> 251, 224 345 -> 333; every block of 64K tokens, 8 rows 134 -> 126, 40 602 -> 591, 48 716 -> 705,
28 and 64 as before.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.attend import HK, HQ, MAIN, D, Layers, expected_all
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import Launch, between, graph_of
from sparda_core.kernels.attend.gpu import attend_all, attend_scratch
from sparda_core.kernels.attend.occupancy import H200
from sparda_core.kernels.attend.splitting import Cut, Tuning, cut_lists, most_splits
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec

DEVICE = tests.gpu_env.DEVICE
ROWS = (12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 200, 256)
#: Blocks of a list -> rows -> pieces before rounds were counted, on 132 multiprocessors. Fewer rows: small pieces.
BEFORE = {
    96: {
        20: 16, 24: 8, 28: 7, 32: 4, 36: 11, 40: 8, 48: 4, 56: 7, 64: 2, 68: 12, 80: 4, 96: 2, 104: 3, 112: 4, 128: 1,
        136: 6, 144: 4, 160: 2, 176: 3, 200: 4, 224: 2, 256: 1,
    },
    64: {
        20: 13, 24: 8, 28: 7, 32: 4, 36: 11, 40: 8, 48: 4, 56: 8, 64: 2, 68: 8, 80: 4, 96: 2, 104: 5, 112: 4, 128: 1,
        136: 4, 144: 4, 160: 2, 176: 3, 200: 4, 224: 2, 256: 1,
    },
    1024: {8: 41, 16: 41, 24: 11, 28: 7, 40: 18, 48: 11, 64: 2, 110: 3},
}  # fmt: skip
#: Rows of attention to every block of 64K tokens.
DENSE, DENSE_BLOCKS = (16, 24, 110), 1024
MOST_ROUNDS, PASSES = 6, 7
ON_GPU = DEVICE.type == "cuda"
SPEC = MAIN if ON_GPU else BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
WIDTH, DTYPE, BOUND, LEAST = (D, torch.bfloat16, 1e-2, 16) if ON_GPU else (32, torch.float32, 1e-5, 1)


@attrs.frozen(kw_only=True)
class Case:
    """Rows whose lists hold so many blocks; `dense`: all that they have."""

    rows: int
    blocks: int
    dense: bool = False

    @property
    def pairs(self) -> int:
        """Lists."""
        return self.rows * HK

    def cut(self, tuning: Tuning) -> Cut:
        """As a launch on an H200 cuts them."""
        return cut_lists(
            self.pairs, self.blocks, block=SPEC.block, group=HQ // HK, head_dim=WIDTH, value_bytes=DTYPE.itemsize,
            sms=H200, tuning=tuning,
        )  # fmt: skip

    def tunings(self) -> dict[str, Tuning]:
        """What is timed, by name: `rule`, `before`, or a number of pieces."""
        found = {"rule": Tuning()}
        before = BEFORE.get(self.blocks, {}).get(self.rows)
        if before is not None:
            found["before"] = Tuning(splits=before)
        room = MOST_ROUNDS * 3 * H200.count
        for splits in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16):
            few = splits <= min(most_splits(self.pairs, self.blocks, H200.count), room // self.pairs)
            if few and 2 * self.pairs * splits >= H200.count:
                found[str(splits)] = Tuning(splits=splits)
        return found


def cases(rows: list[int], dense: list[int]) -> Iterator[Case]:
    """Selected lists of two lengths, then whole ones."""
    for blocks in (96, 64):
        yield from (Case(rows=count, blocks=blocks) for count in rows)
    yield from (Case(rows=count, blocks=DENSE_BLOCKS, dense=True) for count in dense)


class Selected:
    """Launches of one case over selected blocks, each launch another layer's."""

    def __init__(self, case: Case) -> None:
        self._case = case
        nbytes = case.pairs * case.blocks * 2 * SPEC.block * WIDTH * DTYPE.itemsize
        self._count = max(2, min(32, 2**29 // nbytes)) if ON_GPU else 2
        spec = attrs.evolve(SPEC, budget=case.blocks)
        self._layers = Layers(case.rows, spec, DTYPE, layers=self._count, width=WIDTH)
        self._sample = slice(None, None, max(1, case.rows // 4))
        self._want = self._layers.expected(0, self._sample)

    def launches(self, tuning: Tuning) -> list[Launch]:
        """Of every layer in turn."""
        scratch = self._layers.scratch(tuning)
        return [
            functools.partial(self._layers.launch, i % self._count, scratch) for i in range(max(LEAST, self._count))
        ]

    def wrong(self, tuning: Tuning) -> float:
        """Relative error of some rows."""
        self._layers.out.fill_(float("nan"))
        self._layers.launch(0, self._layers.scratch(tuning))
        got = self._layers.out[self._sample].double()
        return float((got - self._want).norm() / self._want.norm())


class Whole:
    """Launches of one case over all blocks of resident rows."""

    def __init__(self, case: Case) -> None:
        self._case, self._tokens = case, case.blocks * SPEC.block - 4
        array = torch.randn(case.pairs * case.blocks, 2, SPEC.block, WIDTH, device=DEVICE, dtype=DTYPE)
        page = min(64, case.blocks)
        table = torch.randperm(len(array) // page, device=DEVICE).int().view(case.rows, HK, -1)
        self._paged = Paged(array=array, table=table, page_blocks=page)
        self._q = torch.randn(case.rows, HQ, WIDTH, device=DEVICE).to(DTYPE)
        self._out = torch.empty_like(self._q)
        self._position = torch.full((case.rows,), self._tokens - 1, device=DEVICE, dtype=torch.int32)

    def launches(self, tuning: Tuning) -> list[Launch]:
        """The same four times."""
        scratch = attend_scratch(
            places=self._case.rows, q_heads=HQ, kv_heads=HK, head_dim=WIDTH, blocks=self._case.blocks, block=SPEC.block,
            dtype=self._q.dtype, device=DEVICE, tuning=tuning,
        )  # fmt: skip
        return [lambda: attend_all(self._q, self._paged, self._position, SPEC, self._out, scratch)] * min(4, LEAST)

    def wrong(self, tuning: Tuning) -> float:
        """Relative error of the last row."""
        self._out.fill_(float("nan"))
        self.launches(tuning)[0]()
        want = expected_all(self._q[-1], self._paged, self._case.rows - 1, self._tokens)
        return float((self._out[-1].double() - want).norm() / want.norm())


def measured(case: Case) -> list[dict[str, object]]:
    """A row for each way to cut a case, all timed in turn. Raises AssertionError where one is wrong."""
    scene = Whole(case) if case.dense else Selected(case)
    tunings = case.tunings()
    for name, tuning in tunings.items():
        wrong = scene.wrong(tuning)
        assert wrong < BOUND, f"{case}, {name}: relative error {wrong:.1e}"
    launches = {name: scene.launches(tuning) for name, tuning in tunings.items()}
    graphs = {name: graph_of(some) for name, some in launches.items()}
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(PASSES + 1):
        for name, graph in graphs.items():
            us = between(graph.replay) / len(launches[name])
            if turn:  # the first time around warms
                taken[name].append(us)
    return [_row(case, name, tunings[name], taken[name]) for name in graphs]


def _row(case: Case, name: str, tuning: Tuning, us: list[float]) -> dict[str, object]:
    cut = case.cut(tuning)
    ctas = case.pairs * cut.splits
    return {
        "rows": case.rows, "blocks": case.blocks, "dense": case.dense, "name": name, "us": statistics.median(us),
        "least_us": min(us), "most_us": max(us), "splits": cut.splits, "tokens": cut.tokens, "join": cut.join,
        "ctas": ctas, "rounds": -(-ctas // (H200.count * cut.ctas_per_sm)),
    }  # fmt: skip


def report(rows: list[dict[str, object]]) -> None:
    """One line a case."""
    by = {str(row["name"]): row for row in rows}
    best = min(rows, key=lambda row: float(str(row["us"])))
    told = " ".join(f"{row['name']}:{row['us']:.1f}" for row in rows if str(row["name"]).isdigit())
    before = by.get("before")
    was = f"before {before['splits']:>2} {before['us']:7.1f}" if before else "before -"
    now = by["rule"]
    print(
        f"{'dense' if now['dense'] else 'chosen'} {now['blocks']:>4} blocks {now['rows']:>3} rows  {was:>18}  "
        f"rule {now['splits']:>2} {now['us']:7.1f}  best {best['name']:>6} {best['us']:7.1f}  | {told}",
        flush=True,
    )


def compile_some(some: list[tuple[Case, Tuning]]) -> int:
    """Launch each once, in a process of its own."""
    for case, tuning in some:
        (Whole(case) if case.dense else Selected(case)).wrong(tuning)
    return len(some)


def compile_all(every: list[Case]) -> int:
    """Fill Triton's cache: every way to add pieces up of each kind of case, on the fewest rows that have it."""
    wanted: dict[tuple[object, ...], tuple[Case, Tuning]] = {}
    for case in every:
        for tuning in case.tunings().values():
            cut = case.cut(tuning)
            padded = 0 if cut.join else max(16, 1 << (cut.splits - 1).bit_length())
            key = (case.dense, cut.tokens, cut.warps, cut.depth, cut.join, padded)
            wanted.setdefault(key, (case, tuning))
    some = list(wanted.values())
    workers = max(1, min(10, (os.cpu_count() or 2) - 2))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        return sum(pool.map(compile_some, [some[at::workers] for at in range(workers)]))


def main() -> None:
    """Compile, check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS), help="of lists of 96 and of 64 blocks")
    parser.add_argument("--dense", type=int, nargs="*", default=list(DENSE), help="of whole rows of 64K tokens")
    parser.add_argument("--out", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    torch.manual_seed(0)
    if not ON_GPU:
        for case in (Case(rows=2, blocks=4), Case(rows=1, blocks=8, dense=True)):
            report(measured(case))
        return
    every = list(cases(args.rows, args.dense))
    began = time.perf_counter()
    print(f"{compile_all(every)} kernels compiled in {time.perf_counter() - began:.1f} s", flush=True)
    began, kept = time.perf_counter(), []
    for case in every:
        rows = measured(case)
        report(rows)
        kept += rows
        keep(args.out, "decode attention by rows and pieces: whole rounds of thread blocks", kept)
    print(f"{len(kept)} cuts in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
