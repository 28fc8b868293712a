"""Summary: what comes out of a study, as plain values; what a table shows is taken from the same place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from sparda_core.whatif.crossover import Found
from sparda_core.whatif.frontier import Between, Cell, cells, frontiers, pairs
from sparda_core.whatif.row import Row
from sparda_core.whatif.study import Study


def summary(
    study: Study, between: Between | None, found: Sequence[Found], choices: Sequence[str] | None
) -> dict[str, Any]:
    """The study's document with the best of each cell, frontiers, speed-ups, crossovers and reasons."""
    return {
        **study.document(),
        "best": [_best(cell) for cell in cells(study, choices)],
        "frontiers": [
            {"given": cell.given, "rows": [_short(row) for row in cell.frontier]} for cell in frontiers(study, choices)
        ],
        "speedups": [
            {"given": pair.given, "speedup": pair.speedup} for pair in (pairs(study, between) if between else ())
        ],
        "between": attrs.asdict(between) if between else None,
        "crossovers": [attrs.asdict(one) for one in found],
        "reasons": dict(reasons(study)),
    }


def reasons(study: Study) -> list[tuple[str, int]]:
    """Why points are impossible, with how many; most frequent first, then in the order of the grid."""
    return Counter(row.reason or "" for row in study.rows if row.status == "impossible").most_common()


def margin(cell: Cell) -> float | None:
    """How much faster the best of a cell is than the next one, as a share; None without a next one."""
    ranked = cell.ranked
    if len(ranked) < 2:
        return None
    best, second = (row.tokens_per_s or 0.0 for row in ranked[:2])
    return best / second - 1


def _best(cell: Cell) -> dict[str, Any]:
    ranked = cell.ranked
    return {"given": cell.given, "best": _short(ranked[0]) if ranked else None, "margin": margin(cell)}


def _short(row: Row) -> dict[str, Any]:
    return {
        "point": row.point, "labels": row.labels, "tokens_per_s": row.tokens_per_s, "step_s": row.step_s,
        "exposed_s": row.exposed_s, "device_bytes": row.device_bytes, "bound": row.bound,
    }  # fmt: skip
