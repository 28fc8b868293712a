"""What runs beside what: a layer's products beside copies, every kernel class beside three co-runners, grids."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sparda_core.bench.gpu_calibration.beside import Subject, beside
from sparda_core.bench.gpu_calibration.copies import bytes_for, guess_us
from sparda_core.bench.gpu_calibration.pool import KIB, Pool, device_of
from sparda_core.bench.gpu_calibration.products import Weights, layers_of
from sparda_core.bench.gpu_calibration.sizes import Copy, Sizes
from sparda_core.bench.gpu_calibration.small_kernels import NAMES, case_of
from sparda_core.bench.gpu_clock import Launch, between, has_gpu
from sparda_core.kernels.corunners.gpu import copy_memory, spin

Row = dict[str, Any]
#: Called with how many of how many are done.
Tell = Callable[[int, int], None]
#: Bytes a second that a copy by the engine is expected to reach, about.
ENGINE = 54e3
#: Every kernel class of a decode step: the products of a layer, then kernels of ours.
CLASSES = (*Weights.NAMES, *NAMES)
#: How long copies beside a layer's products take, times `Sizes.beside_us`.
LONGER = 2.5


def beside_products(sizes: Sizes, pool: Pool, tell: Tell, *, shrink: int = 1) -> list[Row]:
    """Copies beside a layer's products: by the engine, by thread blocks that come late, by such that were there."""
    rows: list[Row] = []
    settings: list[tuple[Copy | None, bool]] = [
        (None, False), *((copy, False) for copy in sizes.beside), *((copy, True) for copy in sizes.first)
    ]
    total = len(settings) * len(sizes.product_rows)
    for tokens in sizes.product_rows:
        subject = layers_of(sizes, tokens, shrink=shrink)
        for copy, first in settings:
            rows.append(_products_row(sizes, pool, subject, copy, first=first))
            tell(len(rows), total)
    return rows


def _products_row(sizes: Sizes, pool: Pool, subject: Subject, copy: Copy | None, *, first: bool) -> Row:
    us = LONGER * sizes.beside_us
    nbytes = bytes_for(copy, us) if copy else us * ENGINE
    fresh, nbytes = _copies(pool, copy, nbytes)
    found = beside(subject, fresh, nbytes, guess_us(copy, nbytes) if copy else us, sizes.repeats, first=first)
    ctas, in_flight, block = copy or (0, 0, 0)
    return {
        "rows": subject.batch, "co": "gather" if copy else "engine", "ctas": ctas, "in_flight_kib": in_flight,
        "block_kib": block, "first": first, "slowdown": found.slowdown, "gb_s": found.gb_per_s,
        "alone_us_per_layer": found.alone_us / sizes.layers, "slowdowns": list(found.slowdowns),
        "rates": list(found.rates),
    }  # fmt: skip


def _copies(pool: Pool, copy: Copy | None, nbytes: float) -> tuple[Callable[[], Launch], int]:
    """What prepares a copy of a list never used before, and its bytes."""
    if copy is not None:
        moved = pool.copy(*copy, nbytes)[2]
        return lambda: pool.copy(*copy, nbytes)[0], moved
    size = min(int(nbytes), pool.slots.numel(), pool.host.numel() // 2)

    def fresh() -> Launch:
        first = int(torch.randint(0, pool.host.numel() - size, ()))
        return lambda: pool.slots[:size].copy_(pool.host[first : first + size], non_blocking=True)

    return fresh, size


def products_alone(sizes: Sizes, *, shrink: int = 1) -> list[Row]:
    """A layer's products at few and many rows with nothing beside them, microseconds a layer."""
    rows: list[Row] = []
    for tokens in (1, 4, *sizes.product_rows):
        subject = layers_of(sizes, tokens, shrink=shrink)
        subject.graph.replay()
        us = [between(subject.graph.replay) / sizes.layers for _ in range(2 * sizes.replays)]
        rows.append({"rows": tokens, "us_per_layer": us})
    return rows


def alone(sizes: Sizes, tell: Tell) -> list[Row]:
    """Every kernel class at every number of rows with nothing beside it, and the work that it is priced by."""
    rows: list[Row] = []
    for subject, facts in _subjects(sizes, sizes.batches, CLASSES):
        subject.graph.replay()
        us = [between(subject.graph.replay) / subject.launches for _ in range(sizes.replays)]
        rows.append({"kernel": subject.name, "rows": subject.batch, "us": us, **facts})
        tell(len(rows), len(CLASSES) * len(sizes.batches))
    return rows


def elasticity(sizes: Sizes, pool: Pool, tell: Tell) -> list[Row]:
    """Every kernel class beside thread blocks that only hold SMs, that only use memory, and that copy over the link."""
    co = CoRunners(sizes, pool)
    rows: list[Row] = []
    total = len(sizes.classes or CLASSES) * len(sizes.elastic) * len(co.names) * len(sizes.ctas)
    for subject, _ in _subjects(sizes, sizes.elastic, sizes.classes or CLASSES):
        for name in co.names:
            for ctas in sizes.ctas:
                fresh, nbytes = co.of(name, ctas)
                found = beside(subject, fresh, nbytes, sizes.beside_us, max(3, sizes.repeats - 2))
                rows.append({
                    "kernel": subject.name, "rows": subject.batch, "co": name, "ctas": ctas,
                    "slowdown": found.slowdown, "gb_s": found.gb_per_s, "us": found.alone_us / subject.launches,
                })  # fmt: skip
                tell(len(rows), total)
    return rows


def _subjects(sizes: Sizes, batches: Sequence[int], names: Sequence[str]) -> Iterator[tuple[Subject, Row]]:
    """Kernel classes one by one, so that only one has its tensors in memory."""
    weights: Weights | None = Weights(sizes)
    assert weights is not None
    for name in [name for name in Weights.NAMES if name in names]:
        for rows in batches:
            yield Subject.of(name, rows, weights.launches(name, rows)), {
                "kind": "product", "work": weights.work(name, rows),
            }  # fmt: skip
    weights = None
    for name in [name for name in NAMES if name in names]:
        for rows in batches:
            case = case_of(name, sizes, rows)
            yield Subject.of(name, rows, list(case.launches)), {"kind": case.kind, "work": case.told}


class CoRunners:
    """The three, each of about `beside_us`; how long they take is found out first."""

    names = ("spin", "memory", "gather")

    def __init__(self, sizes: Sizes, pool: Pool) -> None:
        self._sizes, self._pool, device = sizes, pool, device_of()
        most = max(sizes.ctas)
        self._out = torch.zeros(most, device=device)
        words = sizes.device_bytes // 4
        self._source = torch.zeros(words, dtype=torch.int32, device=device)
        self._target = torch.empty_like(self._source)
        self._turns = self._long_enough(lambda n: spin(self._out, most, n), 1 << 12)

    def _long_enough(self, run: Callable[[int], None], start: int) -> int:
        """So many turns take about as long as wanted."""
        if not has_gpu():
            return 1
        run(start)
        return max(1, int(start * self._sizes.beside_us / between(functools.partial(run, start))))

    def of(self, name: str, ctas: int) -> tuple[Callable[[], Launch], float]:
        """What prepares the co-runner `name` with so many thread blocks, and the bytes that it moves."""
        if name == "spin":
            return lambda: functools.partial(spin, self._out, ctas, self._turns), 0.0
        if name == "memory":
            words = self._words(ctas)
            part = functools.partial(copy_memory, self._source[:words], self._target[:words], ctas)
            return lambda: part, 8.0 * words
        copy = (ctas, 128, self._sizes.block_kib)
        return _copies(self._pool, copy, bytes_for(copy, self._sizes.beside_us))

    def _words(self, ctas: int) -> int:
        """Words whose copy takes about as long as wanted, all that there are at most."""
        least, every = 1 << 14, self._source.numel()
        if not has_gpu():
            return min(least, every)
        probe = min(every, ctas << 20)
        run = functools.partial(copy_memory, self._source[:probe], self._target[:probe], ctas)
        run()
        return int(min(every, max(least, probe * self._sizes.beside_us / between(run)))) // least * least


def grids(sizes: Sizes, *, shrink: int = 1) -> list[Row]:
    """Names and grids of the library's product kernels, as torch's profiler tells them: one row a product."""
    rows: list[Row] = []
    for tokens in (1, 4, *sizes.product_rows):
        subject = layers_of(sizes, tokens, shrink=shrink)
        rows += [{"rows": tokens, "kernel": "layer", **told} for told in profiled(subject.graph.replay)]
    return rows


def profiled(run: Launch) -> list[Row]:
    """Kernels that a call runs, in order: name, grid, block, shared memory, registers, time. Empty off a GPU."""
    run()
    if not has_gpu():
        return []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))
    return [_kernel(event) for event in kernels]


def _kernel(event: Row) -> Row:
    told = event.get("args", {})
    return {
        "name": event["name"], "us": float(event["dur"]), "grid": told.get("grid"), "block": told.get("block"),
        "shared_kib": round(float(told.get("shared memory", 0)) / KIB, 1),
        "registers": told.get("registers per thread"),
    }  # fmt: skip
