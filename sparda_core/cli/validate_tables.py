"""Tables of `sparda validate`: cells, errors, decisions. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparda_core.cli.screen import show_json, show_table

if TYPE_CHECKING:
    from sparda_core.bench.validate.folder import Run
    from sparda_core.bench.validate.record import Record


def line_of(record: Record) -> dict[str, Any]:
    """One cell in a line: milliseconds, shares; None where there is nothing."""
    from sparda_core.bench.validate.record import DRAWN, REPLAYED

    measured = record.measured
    return {
        "cell": record.cell.key, "tier": record.tier, "stratum": record.stratum,
        "measured_ms": None if measured is None else measured.step_s * 1e3, "tokens_per_s": record.tokens_per_s,
        "repeatability": None if measured is None else measured.repeatability,
        **{f"{way}_error": record.error(way) for way in (REPLAYED, DRAWN)},
        "problem": record.refused or next((one.problem for one in record.predicted.values() if one.problem), None),
    }  # fmt: skip


def show_run(
    lines: Sequence[dict[str, Any]], errors: Sequence[dict[str, Any]], decided: Sequence[dict[str, Any]],
    notes: Sequence[str],
) -> None:  # fmt: skip
    """Print cells, errors by tier and stratum, and decisions."""
    show_table(
        "Steps measured, and predicted tokens/s over measured", ("cell", "tier", "stratum", "ms", "repeats", "replayed",
        "drawn"), [
            (row["cell"], row["tier"], row["stratum"], row["measured_ms"], _share(row["repeatability"], sign=False),
             _share(row["replayed_error"]), _share(row["drawn_error"]))
            for row in lines
        ], notes=[f"{row['cell']}: {row['problem']}" for row in lines if row["problem"]],
    )  # fmt: skip
    heads = ("tier", "stratum", "facts", "cells", "median", "p90", "largest", "mean")
    if errors:
        _errors(heads, errors, notes)
    if decided:
        show_table("Decisions", ("decision", "kind", "figure"), [
            (row["decision"], row["kind"], row["figure"]) for row in decided
        ])  # fmt: skip


def _errors(heads: Sequence[str], errors: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    show_table("Absolute error of tokens/s", heads, [
        (row["tier"], row["stratum"] or "all", row["way"], row["cells"],
         *(_share(row[name], sign=False) for name in ("median", "p90", "largest")), _share(row["signed_mean"]))
        for row in errors
    ], notes=notes)  # fmt: skip


def _share(value: float | None, *, sign: bool = True) -> str | None:
    return None if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


def show_list(found: Run, *, as_json: bool) -> None:
    """Print the cells, or their document."""
    if as_json:
        show_json({"provenance": found.provenance, "cells": [
            {"cell": record.cell, "tier": record.tier, "stratum": record.stratum, "ratio": record.ratio,
             "groups": record.groups} for record in found.records
        ]})  # fmt: skip
        return
    show_table("Cells", ("cell", "tier", "stratum", "copies / compute", "decisions"), [
        (record.cell.key, record.tier, record.stratum, record.ratio, ", ".join(record.groups))
        for record in found.records
    ], notes=[f"{name.replace('_', ' ')}: {value}" for name, value in found.provenance.items()])  # fmt: skip
