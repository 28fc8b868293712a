"""Copies that one graph forks beside compute, as a captured decode step does: ready together with the next kernel.

A layer of such a graph is a mark of the clock, a fork, kernels and a copy beside each other, a mark behind each of the
two, and a join. A mark ahead of the copy would let the kernels take their SMs first, so the copy is timed from the
mark ahead of the fork; copies with nothing beside them are timed alike.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch

from sparda_core.bench.gpu_calibration.forked_lists import Listed
from sparda_core.bench.gpu_calibration.pool import Pool, device_of
from sparda_core.bench.gpu_calibration.products import Weights
from sparda_core.bench.gpu_calibration.sizes import Copy, Sizes
from sparda_core.bench.gpu_calibration.small_kernels import attend_case, case_of
from sparda_core.bench.gpu_clock import (
    Launch,
    current_stream,
    finish,
    graph_of,
    has_gpu,
    median_us,
    new_stream,
    on_stream,
)
from sparda_core.kernels.clock.gpu import mark
from sparda_core.simulator.gpu_fit.beside import PRODUCT
from sparda_core.work import Work

Row = dict[str, Any]
#: Called with how many of how many are done.
Tell = Callable[[int, int], None]
#: Products of a layer from attention to attention.
PRODUCTS = ("output", "gate up", "down", "qkv")
#: What runs beside copies: its kernels in turn, ours named as in `small_kernels.py`, and for how many times as long as
#: the copy takes alone they go on, to outlast it. A whole layer runs once, and its copy takes a share of it alone.
BESIDE: dict[str, tuple[tuple[str, ...], float]] = {
    "attend": (("attend",), 4.0), "products": (PRODUCTS, 2.5), "score": (("score forecast",), 2.0),
    "small": (("norm", "gate", "choose"), 1.5), "append": (("rotate append",), 1.5),
    "layer": (("attend", *PRODUCTS, "score forecast"), 0.0),
}  # fmt: skip
OF_A_LAYER = 0.7
#: What is looked at at every number of rows; the others at fewer.
FINELY = ("attend", "products", "layer")
#: Turns by which the time of one is told beforehand.
_TURNS = 8
#: Marks of a layer: the fork, the end of compute, the end of the copy.
_MARKS = 3


class Forked:
    """A graph of layers: compute and a copy beside each other, then the next layer.

    layers  what the compute lane launches in each of them, maybe nothing
    copies  what the copy lane launches beside it, one a layer; None: nothing
    """

    def __init__(self, layers: Sequence[Sequence[Launch]], copies: Sequence[Launch] | None) -> None:
        self._marks = torch.zeros(len(layers), _MARKS, 1, dtype=torch.int64, device=device_of())
        # Nothing of this object is in it: what a graph holds is freed with it.
        self._graph = graph_of([functools.partial(_issue, layers, copies, self._marks, new_stream(priority=-1))])

    def replay(self) -> tuple[list[float], list[float]]:
        """Microseconds from the fork to the end of compute, and to that of the copy (0 without one), by layer."""
        self._graph.replay()
        finish()
        marks = self._marks.flatten(1).tolist()
        return [(end - fork) / 1e3 for fork, end, _ in marks], [max(0, end - fork) / 1e3 for fork, _, end in marks]


def _issue(
    layers: Sequence[Sequence[Launch]], copies: Sequence[Launch] | None, marks: torch.Tensor, side: Any
) -> None:
    for at, launches in enumerate(layers):
        fork, compute_end, copy_end = marks[at]
        mark(fork)
        if copies is not None:
            side.wait_stream(current_stream())
            with on_stream(side):
                copies[at]()
                mark(copy_end)
        for launch in launches:
            launch()
        mark(compute_end)
        if copies is not None:
            current_stream().wait_stream(side)


@attrs.frozen(kw_only=True)
class Compute:
    """What runs beside copies in each layer of a graph.

    splits  pieces of each list of attention, where it was told
    ops     (name, kind, work) of its kernels in turn, as a prediction prices them; launched `times` times
    """

    beside: str
    rows: int
    splits: int | None = None
    layers: tuple[tuple[Launch, ...], ...]
    ops: tuple[tuple[str, str, Work], ...]
    times: int = 1


def measure(sizes: Sizes, pool: Pool, tell: Tell) -> list[Row]:
    """One row for what runs beside (nothing at first) at each number of rows; its `copies`, one a setting.

    us        of compute alone, by layer and replay
    copies    bytes, microseconds of the copy and of compute beside it, by layer and replay
    """
    nothing = Compute(beside="nothing", rows=0, layers=((),) * sizes.forked_layers, ops=())
    settings: list[tuple[str, int, int | None]] = [
        (beside, rows, None) for rows in sizes.forked_rows for beside in BESIDE
        if beside in FINELY or rows in sizes.forked_few
    ]  # fmt: skip
    settings += [("attend", rows, splits) for rows, splits in sizes.forked_cuts]
    weights, lists = Weights(sizes), {block: Listed(sizes, pool, block) for *_, block in sizes.forked}
    found = [_row(sizes, lists, nothing)]
    for setting in settings:
        found.append(_row(sizes, lists, compute_of(sizes, *setting[:2], weights, splits=setting[2])))
        tell(len(found), 1 + len(settings))
    return found


def compute_of(sizes: Sizes, beside: str, rows: int, weights: Weights, *, splits: int | None = None) -> Compute:
    """Layers of the kernels that `beside` names in BESIDE, each going through weights and blocks of its own.

    splits  pieces of each list of attention; None: as it cuts them by itself
    """
    named: dict[str, Sequence[Launch]] = {}
    ops: list[tuple[str, str, Work]] = []
    kernels, outlasts = BESIDE[beside]
    for name in kernels:
        if name in Weights.NAMES:
            named[name] = weights.launches(name, rows)
            told: dict[str, Any] = weights.work(name, rows)
            ops.append((name, PRODUCT, Work(**told)))
        else:
            cut = splits is not None and name == "attend"
            case = attend_case(sizes, rows, splits or 1) if cut else case_of(name, sizes, rows)
            named[name] = case.launches
            ops.append((name, case.kind, case.work))
    times = 1
    if outlasts and has_gpu():
        turns = [launches[at % len(launches)] for at in range(_TURNS) for launches in named.values()]
        times = math.ceil(outlasts * sizes.forked_us / (median_us(turns, 3) * len(named)))
    layers = tuple(
        tuple(launches[(layer * times + at) % len(launches)] for at in range(times) for launches in named.values())
        for layer in range(sizes.forked_layers)
    )
    return Compute(beside=beside, rows=rows, splits=splits, layers=layers, ops=tuple(ops), times=times)


def _row(sizes: Sizes, lists: Mapping[int, Listed], compute: Compute) -> Row:
    bare = Forked(compute.layers, None)
    us = [one for _ in range(sizes.repeats + 1) for one in bare.replay()[0]][sizes.forked_layers :]
    long_us = sizes.forked_us if compute.beside != "layer" else OF_A_LAYER * max(1.0, statistics.median(us))
    return {
        "beside": compute.beside, "rows": compute.rows, "splits": compute.splits, "times": compute.times, "us": us,
        "ops": [{"name": name, "kind": kind, "work": _told(work)} for name, kind, work in compute.ops],
        "copies": [_copied(sizes, lists[copy[2]], compute, copy, long_us) for copy in sizes.forked],
    }  # fmt: skip


def _copied(sizes: Sizes, lists: Listed, compute: Compute, copy: Copy, us: float) -> Row:
    """A copy of about `us` alone in every layer, of a new list in every replay, the first of which is not counted."""
    made = [lists.copy(copy, us) for _ in compute.layers]
    graph = Forked(compute.layers, [run for run, _, _ in made])
    compute_us, copy_us = replayed(graph, [renew for _, renew, _ in made], sizes.forked_repeats)
    ctas, in_flight, block = copy
    return {
        "ctas": ctas, "in_flight_kib": in_flight, "block_kib": block, "bytes": made[0][2], "copy_us": copy_us,
        "compute_us": compute_us,
    }  # fmt: skip


def replayed(graph: Forked, renew: Sequence[Callable[[], None]], repeats: int) -> tuple[list[float], list[float]]:
    """Microseconds of compute and of the copies, layer by layer and replay by replay, every replay with new lists.

    renew  gives each layer's copy a list of its own
    One replay more than `repeats` is made: the first is not counted.
    """
    compute_us: list[float] = []
    copy_us: list[float] = []
    for replay in range(repeats + 1):
        for new_list in renew:
            new_list()
        finish()
        computed, copied = graph.replay()
        if replay:
            compute_us += computed
            copy_us += copied
    return compute_us, copy_us


def _told(work: Work) -> dict[str, Any]:
    """What of a work is not as it is by itself."""
    own = attrs.asdict(Work())
    return {name: value for name, value in attrs.asdict(work).items() if value != own[name]}


def summary(rows: Iterable[Row]) -> list[str]:
    """A line for each row: GB/s of each copy from the fork to its end, and microseconds that compute took longer.

    Behind the rows stand the thread blocks of the first kernel.
    """
    lines = []
    for row in rows:
        cells = []
        for copy in row["copies"]:
            took, met = statistics.median(copy["copy_us"]), statistics.median(copy["compute_us"])
            rate = copy["bytes"] / took / 1e3 if took else math.nan
            more = met - statistics.median(row["us"])
            cells.append(f"{copy['ctas']} x {copy['in_flight_kib']}: {rate:5.1f} {more:+6.1f}")
        grid = row["ops"][0]["work"].get("ctas", 0) if row["ops"] else 0
        lines.append(f"{row['beside']:9s} {row['rows']:4d} rows {grid:5d}  {'  '.join(cells)}")
    return lines
