"""Decisions of a run: what predictions would have chosen, against what was measured. Torch-free."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparda_core.bench.validate.decisions import crossing, kendall_tau, log_slope, regret
from sparda_core.bench.validate.folder import Run
from sparda_core.bench.validate.record import DRAWN, Record

Row = dict[str, Any]
#: Measured rates this close are level: the machine repeats itself no better.
RESOLUTION = 0.005
#: Predicted rates this close are level, and the cheapest of them is recommended, as `sparda advise` does.
LEVEL = 0.005


def decisions(run: Run, *, way: str = DRAWN) -> list[Row]:
    """One row a decision whose cells were measured and have a prediction: `decision`, `figure`, `detail` and more."""
    found: list[Row] = []
    for group in run.groups:
        records = [record for record in run.group(group) if record.error(way) is not None]
        reads = next((read for word, read in READS.items() if group.startswith(word)), None)
        if reads is not None and len(records) > 1:
            found += list(reads(group, records, way))
    return found


def rates(records: Sequence[Record], way: str) -> tuple[dict[str, float], dict[str, float]]:
    """Measured and predicted tokens per second by key of the cell, for records that have both."""
    measured = {record.cell.key: record.tokens_per_s or math.nan for record in records}
    predicted = {record.cell.key: record.cell.batch / (record.predicted[way].step_s or math.nan) for record in records}
    return measured, predicted


def _combinations(group: str, records: Sequence[Record], way: str) -> Iterator[Row]:
    measured, predicted = rates(records, way)
    order = kendall_tau(measured, predicted, resolution=RESOLUTION)
    if order.tau is not None:
        yield {
            "decision": f"order of {group}", "kind": "tau", "figure": order.tau, "options": len(records),
            "pairs": order.pairs, "level": order.level, "wrong": [list(pair) for pair in order.discordant],
        }  # fmt: skip
    yield from _chosen(group, records, way)


def _chosen(group: str, records: Sequence[Record], way: str) -> Iterator[Row]:
    """The recommended option; of equals the first as listed. Options of one engine are listed by CTAs."""
    ordered = sorted(records, key=lambda record: (record.cell.engine, record.measured.copy_ctas or 0))  # type: ignore[union-attr]
    got = regret(*rates(ordered, way), level=LEVEL)
    yield {"decision": f"choice among {group}", "kind": "regret", "figure": got.share, "options": len(records),
           "recommended": got.recommended, "best": got.best}  # fmt: skip


def _crossover(group: str, records: Sequence[Record], way: str) -> Iterator[Row]:
    """Two methods along the batch."""
    methods: dict[str, dict[int, Record]] = {}
    for record in records:
        methods.setdefault(f"{record.cell.method} x{record.cell.slots:g}", {})[record.cell.batch] = record
    if len(methods) != 2:
        return
    (first, of_first), (second, of_second) = methods.items()
    grid = sorted(of_first.keys() & of_second.keys())
    if len(grid) < 2:
        return
    series = [[_rate(side[batch], of) for batch in grid] for of in (None, way) for side in (of_first, of_second)]
    got = crossing(series[0], series[1], series[2], series[3])
    yield {
        "decision": f"{group}: {second} overtakes {first}", "kind": "crossover", "figure": got.steps_apart,
        "grid": grid, "measured_at": _at(grid, got.measured_at), "predicted_at": _at(grid, got.predicted_at),
    }  # fmt: skip


def _at(grid: Sequence[int], index: int | None) -> int | None:
    return None if index is None else grid[index]


def _slope(group: str, records: Sequence[Record], way: str) -> Iterator[Row]:
    """d ln(tokens/s) / d ln(what the link must give) between neighbours."""

    def asked(record: Record) -> float:
        """Bytes that the step needs of a link that gives so much less, relative."""
        assert record.measured is not None
        return record.measured.moved_bytes / (1 - record.measured.background_bytes_per_s / FULL_LINK)

    ordered = sorted(records, key=asked)
    for low, high in itertools.pairwise(ordered):
        if asked(high) / asked(low) < LEAST_CHANGE:
            continue
        slopes = [log_slope((asked(low), _rate(low, of)), (asked(high), _rate(high, of))) for of in (None, way)]
        yield {"decision": f"{group}: {low.cell.key} to {high.cell.key}", "kind": "slope",
               "figure": abs(slopes[1] - slopes[0]), "measured": slopes[0], "predicted": slopes[1]}  # fmt: skip


#: What the copy engine reaches of a PCIe 5 link, and the least change of bytes between two points of a slope.
FULL_LINK, LEAST_CHANGE = 55e9, 1.05


def _rate(record: Record, way: str | None) -> float:
    measured, predicted = rates([record], way or DRAWN)
    return (measured if way is None else predicted)[record.cell.key]


READS: dict[str, Callable[[str, Sequence[Record], str], Iterator[Row]]] = {
    "combinations": _combinations, "copies": _chosen, "crossover": _crossover, "slope": _slope,
}  # fmt: skip
