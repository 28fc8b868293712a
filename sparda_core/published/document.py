"""The published table and its prediction as plain rows, JSON and CSV."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import attrs

from sparda_core import files
from sparda_core.published.cells import PARTS, CellResult
from sparda_core.published.inverse import CrossCheck
from sparda_core.published.report import Ranking, Report, Sensitivity
from sparda_core.published.table import BATCHES, CONTEXT, SOURCE, TOO_LARGE, Mode


def status(result: CellResult) -> str:
    """How the paper has the cell: a time, out of memory, or nothing."""
    if result.cell.out_of_memory:
        return "out of memory"
    return "time" if result.cell.tokens_per_s is not None else "not published"


def cell_rows(report: Report) -> list[dict[str, Any]]:
    """One row a cell, batch 128 included; seconds per step, tokens per second, errors as a share."""
    return [
        {
            "batch": r.cell.batch,
            "mode": str(r.cell.mode),
            "published": status(r),
            "published_tokens_per_s": r.cell.tokens_per_s,
            "predicted_tokens_per_s": r.tokens_per_s,
            "error": r.error,
            "fitted": (r.cell.batch, r.cell.mode) == report.fitted,
            "out_of_memory": r.problem,
            "step_s": r.step_s,
            "bound": r.bound,
            "launches": r.launches,
            "host_s": r.host_s,
            "compute_s": r.compute_s,
            "transfer_s": r.transfer_s,
            "exposed_s": r.exposed_s,
            **{f"{part}_s": r.by_part.get(part) for part in PARTS},
            "device_bytes": r.need.device,
            "host_bytes": r.need.host,
        }
        for r in report.results
    ]


def summary(report: Report) -> dict[str, Any]:
    """Errors, winners and memory in a few figures."""
    errors = report.errors
    rankings = report.rankings
    pairs = [ranking.pairs for ranking in rankings]
    return {
        "cells_judged": len(errors),
        "fitted": None if report.fitted is None else f"batch {report.fitted[0]}, {report.fitted[1]}",
        "median_abs_error": report.median_error,
        "max_abs_error": report.max_error,
        "median_abs_error_by_mode": {str(mode): _median(report, mode) for mode in Mode},
        "winners_right": sum(ranking.winner_right for ranking in rankings),
        "batches_judged": len(rankings),
        "pairs_in_order": sum(right for right, _ in pairs),
        "pairs": sum(every for _, every in pairs),
        "memory_right": _memory_cells(report) - len(report.memory_wrong),
        "memory_cells": _memory_cells(report),
        "memory_wrong": [f"batch {r.cell.batch}, {r.cell.mode}" for r in report.memory_wrong],
        "winners": [_winner(ranking) for ranking in rankings],
        "speedup_over_sync": _ratios(report, Mode.PREFETCH, Mode.SYNC),
        "prefetch_gain": _ratios(report, Mode.PREFETCH, Mode.NO_PREFETCH),
        "best_over_resident": _ratio(report, (BATCHES[-1], Mode.PREFETCH), (BATCHES[0], Mode.RESIDENT)),
    }


def document(
    reports: dict[str, Report], *, tried: Sequence[Sensitivity] = (), implied: dict[str, float] | None = None,
    checks: Sequence[CrossCheck] = (),
) -> dict[str, Any]:  # fmt: skip
    """Everything found, as one JSON object; `reports` by the name of their assumptions."""
    return {
        "source": SOURCE,
        "context": CONTEXT,
        "batches": [*BATCHES, TOO_LARGE],
        "reports": {
            name: {"assumed": attrs.asdict(report.assumed), "summary": summary(report), "cells": cell_rows(report)}
            for name, report in reports.items()
        },
        "sensitivity": [
            {"changed": one.what, **{key: summary(one.report)[key] for key in SENSITIVE}} for one in tried
        ],
        "implied_churn": implied or {},
        "prefetch_with_the_churn_of_no_prefetch": [{**attrs.asdict(check), "error": check.error} for check in checks],
    }


SENSITIVE = ("median_abs_error", "max_abs_error", "winners_right", "pairs_in_order")


def csv_text(reports: dict[str, Report]) -> str:
    """One line a cell and report; a column a figure, empty where there is none."""
    rows = [{"assumptions": name, **row} for name, report in reports.items() for row in cell_rows(report)]
    return files.csv_text(rows)


def _median(report: Report, mode: Mode) -> float | None:
    errors = [abs(error) for (_, which), error in report.errors.items() if which == mode]
    return statistics.median(errors) if errors else None


def _winner(ranking: Ranking) -> dict[str, Any]:
    return {
        "batch": ranking.batch,
        "published": str(ranking.published[0]),
        "predicted": str(ranking.predicted[0]),
        "right": ranking.winner_right,
    }


def _ratios(report: Report, fast: Mode, slow: Mode) -> list[dict[str, float | int | None]]:
    """One mode's tokens/s over another's, by batch."""
    return [{"batch": batch, **_ratio(report, (batch, fast), (batch, slow))} for batch in BATCHES]


def _ratio(report: Report, fast: tuple[int, Mode], slow: tuple[int, Mode]) -> dict[str, float | None]:
    published, predicted = report.ratio(fast, slow)
    return {"published": published, "predicted": predicted}


def _memory_cells(report: Report) -> int:
    return sum(status(result) != "not published" for result in report.results)
