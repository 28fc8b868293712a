"""The page about the table says what the results file says."""

from __future__ import annotations

import json
from typing import Any

from sparda_core.published.document import csv_text
from sparda_core.published.report import Report
from tests.house.tree import ROOT

RESULTS = max((ROOT / "benchmarks" / "results").glob("*-published-table.json"))
PAGE = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")


def page_rows(found: dict[str, Any]) -> list[str]:
    """The table of a document as lines of Markdown, as docs/published.md has it: cells that ran, or should not fit."""
    lines = []
    for rows in zip(*(report["cells"] for report in found["reports"].values()), strict=True):
        first = rows[0]
        if first["published"] != "not published" and first["predicted_tokens_per_s"] is not None:
            told = first["published"] if first["error"] is None else f"{first['published_tokens_per_s']:.1f}"
            figures = [f"{row['predicted_tokens_per_s']:.1f} | {_error(row)}" for row in rows]
            lines.append(f"| {' | '.join([str(first['batch']), first['mode'], told, *figures])} |")
    return lines


def _error(row: dict[str, Any]) -> str:
    if row["fitted"]:
        return "fitted"
    return "-" if row["error"] is None else f"{100 * row['error']:+.0f} %"


def test_every_line_of_the_results_is_in_the_page_and_no_other() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = page_rows(found)
    assert len(lines) == 15
    batches = tuple(f"| {batch} |" for batch in (4, 8, 16, 32, 64))
    assert [line for line in PAGE.splitlines() if line.startswith(batches)] == lines
    assert RESULTS.name in PAGE


def test_the_results_are_not_far_from_what_the_code_says_today(plain: Report, fitted: Report) -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    for stored, now in zip(found["reports"].values(), (plain, fitted), strict=True):
        was = {(row["batch"], row["mode"]): row["error"] for row in stored["cells"]}
        for (batch, mode), error in now.errors.items():
            assert abs(was[batch, mode] - error) < 0.1, f"batch {batch}, {mode}: run sparda validate again, and tell"


def test_csv_has_one_line_a_cell_and_report(plain: Report) -> None:
    assert len(csv_text({"a": plain, "b": plain}).splitlines()) == 1 + 2 * 24
