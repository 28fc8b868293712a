"""What runs beside what: a layer's products beside copies, every kernel class beside three co-runners, grids."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_calibration.beside import TIMES, Other, Subject, beside
from sparda_core.bench.gpu_calibration.copies import bytes_for
from sparda_core.bench.gpu_calibration.points import Point, points
from sparda_core.bench.gpu_calibration.pool import KIB, Pool, device_of
from sparda_core.bench.gpu_calibration.products import Weights, layers_of
from sparda_core.bench.gpu_calibration.sizes import Copy, Sizes
from sparda_core.bench.gpu_calibration.small_kernels import NAMES, case_of
from sparda_core.bench.gpu_clock import Launch, between, graph_of, has_gpu
from sparda_core.kernels.corunners.gpu import copy_memory, spin
from sparda_core.kernels.step.gpu import begin_step
from sparda_core.simulator.gpu_fit.beside import PRODUCTS

Row = dict[str, Any]
#: Called with how many of how many are done.
Tell = Callable[[int, int], None]
#: Bytes a second that a copy by the engine is expected to reach, about.
ENGINE = 54e3
#: Every kernel class of a decode step: the products of a layer, then kernels of ours.
CLASSES = (*Weights.NAMES, *NAMES)
#: Others of these beside which nothing more is learnt.
VARIANTS = ("score random", "play trace", "attend pages", "choose and diff last-selection", "choose and diff lru")


def beside_products(sizes: Sizes, pool: Pool, tell: Tell, *, shrink: int = 1) -> list[Row]:
    """Copies beside a layer's products: by the engine, by thread blocks that come late, by such that were there."""
    rows: list[Row] = []
    settings: list[tuple[Copy | None, bool]] = [
        (None, False), *((copy, False) for copy in sizes.beside), *((copy, True) for copy in sizes.first)
    ]
    total = len(settings) * len(sizes.product_rows)
    for tokens in sizes.product_rows:
        subject = layers_of(sizes, tokens, shrink=shrink, span_us=TIMES * sizes.beside_us)
        for copy, first in settings:
            rows.append(_products_row(sizes, pool, subject, copy, first=first))
            tell(len(rows), total)
    return rows


def _products_row(sizes: Sizes, pool: Pool, subject: Subject, copy: Copy | None, *, first: bool) -> Row:
    found = beside(subject, copies_of(pool, copy, sizes.beside_us), sizes.repeats, first=first)
    ctas, in_flight, block = copy or (0, 0, 0)
    return {
        "rows": subject.batch, "co": "gather" if copy else "engine", "ctas": ctas, "in_flight_kib": in_flight,
        "block_kib": block, "first": first, "slowdown": found.slowdown, "gb_s": found.gb_per_s,
        "alone_us_per_layer": len(PRODUCTS) * found.launch_us, "slowdowns": list(found.slowdowns),
        "rates": list(found.rates),
    }  # fmt: skip


def copies_of(pool: Pool, copy: Copy | None, us: float) -> Other:
    """Copies of about `us`, of a list never used before, or by the engine of a run of memory."""

    def gather(share: float) -> tuple[Launch, float]:
        assert copy is not None
        run, _, nbytes = pool.copy(*copy, bytes_for(copy, us * share))
        return run, nbytes

    def engine(share: float) -> tuple[Launch, float]:
        size = min(int(us * share * ENGINE), pool.slots.numel(), pool.host.numel() // 2)
        first = int(torch.randint(0, pool.host.numel() - size, ()))
        return lambda: pool.slots[:size].copy_(pool.host[first : first + size], non_blocking=True), size

    return gather if copy is not None else engine


def products_alone(sizes: Sizes, *, shrink: int = 1) -> list[Row]:
    """A layer's products at few and many rows with nothing beside them, microseconds a layer."""
    rows: list[Row] = []
    for tokens in (1, 4, *sizes.product_rows):
        subject = layers_of(sizes, tokens, shrink=shrink, span_us=sizes.beside_us)
        us = [len(PRODUCTS) * launch for launch in subject.alone_us(sizes.replays)]
        rows.append({"rows": tokens, "us_per_layer": us})
    return rows


def alone(sizes: Sizes, tell: Tell) -> list[Row]:
    """Every kernel class at every point with nothing beside it, and the work that it is priced by."""
    rows: list[Row] = []
    every = points(sizes, CLASSES)
    for point, (subject, facts) in zip(every, _subjects(sizes, every, sizes.beside_us / 2), strict=True):
        size = {"rows": point.rows, "context": point.context, "slots": point.slots}
        rows.append({"kernel": subject.name, **size, "us": subject.alone_us(sizes.repeats), **facts})
        tell(len(rows), len(every))
    return rows


def elasticity(sizes: Sizes, pool: Pool, tell: Tell) -> list[Row]:
    """Every kernel class beside thread blocks that only hold SMs, that only use memory, and that copy over the link.

    And the launch of graphs, which holds no SM and uses no memory of the device.
    """
    co, names = CoRunners(sizes, pool), sizes.classes or tuple(name for name in CLASSES if name not in VARIANTS)
    rows: list[Row] = []
    total = (len(names) * len(sizes.elastic) + 1) * len(co.names) * len(sizes.ctas)
    every = [Point(kernel=name, rows=rows, context=sizes.context) for name in names for rows in sizes.elastic]
    subjects = (subject for subject, _ in _subjects(sizes, every, TIMES * sizes.beside_us))
    for subject in itertools.chain(subjects, [launches_of_graphs(sizes)]):
        for row in _beside_each(sizes, subject, co):
            rows.append(row)
            tell(len(rows), total)
    return rows


def _beside_each(sizes: Sizes, subject: Subject, co: CoRunners) -> Iterator[Row]:
    for name in co.names:
        for ctas in sizes.ctas:
            found = beside(subject, co.of(name, ctas), max(1, sizes.repeats - 2))
            yield {
                "kernel": subject.name, "rows": subject.batch, "co": name, "ctas": ctas,
                "slowdown": found.slowdown, "gb_s": found.gb_per_s, "us": found.launch_us,
            }  # fmt: skip


class _Replays:
    """A graph that is launched again and again, as if that were one graph."""

    def __init__(self, graph: Any, times: int) -> None:
        self._graph, self._times = graph, times

    def replay(self) -> None:
        """All launches in a row."""
        for _ in range(self._times):
            self._graph.replay()


def launches_of_graphs(sizes: Sizes) -> Subject:
    """Graphs of 32 kernels of one warp, one after another."""
    tick, counts = (torch.zeros(n, dtype=torch.int32, device=device_of()) for n in (1, 32))
    times = max(1, int(TIMES * sizes.beside_us / 50)) if has_gpu() else 1
    graph = graph_of([functools.partial(begin_step, tick, counts)] * 32)
    return Subject(name="graph launch", batch=0, launches=times, graph=_Replays(graph, times))


def _subjects(sizes: Sizes, every: Sequence[Point], span_us: float) -> Iterator[tuple[Subject, Row]]:
    """Kernels one by one, so that only one has its tensors in memory; products come before kernels of ours."""
    weights: Weights | None = None
    for point in every:
        name, rows = point.kernel, point.rows
        if name in Weights.NAMES:
            weights = weights or Weights(sizes)
            yield Subject.of(name, rows, weights.launches(name, rows), span_us), {
                "kind": "product", "work": weights.work(name, rows),
            }  # fmt: skip
            continue
        weights = None
        case = case_of(name, attrs.evolve(sizes, context=point.context), rows, slots=point.slots)
        yield Subject.of(name, rows, case.launches, span_us), {"kind": case.kind, "work": case.told}


class CoRunners:
    """The three, each of about `beside_us`; how long they take is found out first."""

    names = ("spin", "memory", "gather")

    def __init__(self, sizes: Sizes, pool: Pool) -> None:
        self._us, self._pool, self._block, device = sizes.beside_us, pool, sizes.block_kib, device_of()
        most = max(sizes.ctas)
        self._out = torch.zeros(most, device=device)
        self._halves = torch.zeros(2, sizes.device_bytes // 4, dtype=torch.int32, device=device)
        self._turns = self._long_enough(lambda n: spin(self._out, most, n), 1 << 12)

    def _long_enough(self, run: Callable[[int], None], start: int) -> float:
        """So many turns take about as long as wanted."""
        if not has_gpu():
            return 1.0
        run(start)
        return start * self._us / between(functools.partial(run, start))

    def of(self, name: str, ctas: int) -> Other:
        """What prepares the co-runner `name` with so many thread blocks."""
        if name == "spin":
            return lambda share: (functools.partial(spin, self._out, ctas, max(1, int(self._turns * share))), 0.0)
        if name == "gather":
            return copies_of(self._pool, (ctas, 128, self._block), self._us)
        words, least = self._words(ctas), 1 << 14

        def memory(share: float) -> tuple[Launch, float]:
            size = max(least, int(words * share) // least * least)
            return functools.partial(copy_memory, self._halves[0, :size], self._halves[1, :size], ctas), 8.0 * size

        return memory

    def _words(self, ctas: int) -> int:
        """Words whose copy takes about as long as wanted with nothing beside it, all that there are at most."""
        every = self._halves.shape[1]
        if not has_gpu():
            return 1
        probe = min(every, ctas << 20)
        run = functools.partial(copy_memory, self._halves[0, :probe], self._halves[1, :probe], ctas)
        run()
        return int(min(every, probe * self._us / between(run)))


def grids(sizes: Sizes, *, shrink: int = 1) -> list[Row]:
    """Names and grids of the library's product kernels, as torch's profiler tells them: one row a product."""
    rows: list[Row] = []
    for tokens in (1, 4, *sizes.product_rows):
        subject = layers_of(sizes, tokens, shrink=shrink)
        rows += [{"rows": tokens, **told} for told in _summed(profiled(subject.graph.replay))]
    return rows


def _summed(kernels: Sequence[Row]) -> list[Row]:
    """Kernels of one name and grid as one row: how many there were, and their time together."""
    table: dict[tuple[str, str], Row] = {}
    for kernel in kernels:
        one = table.setdefault((kernel["name"], str(kernel["grid"])), {**kernel, "us": 0.0, "count": 0})
        one["us"] += kernel["us"]
        one["count"] += 1
    return list(table.values())


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
