"""Predict the SparDA paper's table again and fill what is said of it: docs/published.md, README.md, data and figure.

    python -m benchmarks.published_page            # predicts (a minute), keeps the results, fills
    python -m benchmarks.published_page --fill     # only fills, from the results that are kept

Needs no GPU and no torch. Tests hold both pages to the results, and the results to what is predicted.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import published_words as words
from sparda_core.bench.page import fill, markdown
from sparda_core.cli.main import main as sparda
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README, FIGURE = (ROOT / place for place in ("docs/published.md", "README.md", "docs/images/published-table.png"))
#: What is replaced in lines of their own: the name of the results, and what README says in a sentence.
_NAME = re.compile(r"\d{4}-\d\d-\d\d-published-table\.json")
_SENTENCE = re.compile(r"(?<=14 cells on an H100, is met ).*?\)(?=\. \[Where it is wrong)", re.DOTALL)


def stored() -> Path:
    """The results that are kept; of several, the newest."""
    return max(RESULTS.glob("*-published-table.json"))


def cells_table(found: Mapping[str, Any]) -> str:
    """A line a cell that ran, or that ran out of memory and is predicted to fit; tokens/s."""
    head = ("batch", "mode", "published", "nothing fitted", "error", "launch time fitted", "error")
    lines = []
    for rows in zip(*(report["cells"] for report in found["reports"].values()), strict=True):
        first = rows[0]
        if first["published"] != "not published" and first["predicted_tokens_per_s"] is not None:
            told = first["published"] if first["error"] is None else f"{first['published_tokens_per_s']:.1f}"
            figures = [part for row in rows for part in (f"{row['predicted_tokens_per_s']:.1f}", _error(row))]
            lines.append((str(first["batch"]), first["mode"], told, *figures))
    return markdown(head, lines)


def _error(row: Mapping[str, Any]) -> str:
    if row["fitted"]:
        return "fitted"
    return "-" if row["error"] is None else f"{100 * row['error']:+.0f} %"


def summary_table(found: Mapping[str, Any]) -> str:
    """Errors, winners and memory of both predictions."""
    plain, fitted = (report["summary"] for report in found["reports"].values())
    head = ("", f"nothing fitted ({plain['cells_judged']} cells)",
            f"launch time fitted (the {fitted['cells_judged']} other cells)")  # fmt: skip
    query = [words.largest(report, ("no-offload", "sync")) for report in found["reports"].values()]
    both = (plain, fitted)
    launches = [report["assumed"]["launch_s"] for report in found["reports"].values()]
    return markdown(head, [
        ("median absolute error", words.share(plain["median_abs_error"]),
         f"**{words.share(fitted['median_abs_error'])}**"),
        ("largest", *(words.share(one["max_abs_error"]) for one in both)),
        ("query-driven cells (6), largest", *(words.share(one) for one in query)),
        ("fastest mode right", f"{plain['winners_right']} of {plain['batches_judged']} batches",
         f"{fitted['winners_right']} of {fitted['batches_judged']}"),
        ("pairs of modes in the right order", *(f"{one['pairs_in_order']} of {one['pairs']}" for one in both)),
        ("out of memory or not, right", *(f"{one['memory_right']} of {one['memory_cells']}" for one in both)),
        ("a launch takes the host", *("as in the profile" if s is None else f"{1e6 * s:.1f} us" for s in launches)),
    ])  # fmt: skip


def sensitivity_table(found: Mapping[str, Any]) -> str:
    """A line an assumption that was changed alone, the launch time fitted otherwise."""
    *_, fitted = found["reports"].values()
    judged, batches = (fitted["summary"][key] for key in ("cells_judged", "batches_judged"))
    head = ("changed", f"median absolute error ({judged} cells)", f"fastest mode right, of {batches}")
    return markdown(head, [
        (one["changed"], words.share(one["median_abs_error"]), str(one["winners_right"]))
        for one in found["sensitivity"]
    ])  # fmt: skip


PLACES = {
    "cells": cells_table, "summary": summary_table, "right": words.where_right, "wrong": words.where_wrong,
    "sensitivity": sensitivity_table,
}  # fmt: skip


def filled(page: str, found: Mapping[str, Any], name: str) -> str:
    """docs/published.md as the results `found`, of the file `name`, make it. Raises ConfigError for a place unknown."""

    def made(place: str) -> str:
        if place not in PLACES:
            raise ConfigError(f"table={place!r} is unknown; known: {', '.join(PLACES)}")
        return PLACES[place](found)

    return _NAME.sub(name, fill(page, made))


def readme_filled(page: str, found: Mapping[str, Any]) -> str:
    """README.md with its sentence about the table. Raises ConfigError where there is no such sentence."""
    told, times = _SENTENCE.subn(lambda _: words.sentence(found), page)
    if times != 1:
        raise ConfigError(f"README.md has {times} sentences about the published table; it must have one")
    return told


def predict() -> None:
    """Keep today's prediction and figure in place of the last one."""
    place = RESULTS / f"{dt.datetime.now(tz=dt.UTC).date()}-published-table.json"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.json"
        if sparda(["validate", "--published", "--sensitivity", "--out", str(out), "--figure", str(FIGURE)]):
            raise SystemExit("sparda validate --published failed; nothing was filled")
        found = json.loads(out.read_text(encoding="utf-8"))
    found["provenance"]["command"] = "python -m benchmarks.published_page"
    for old in RESULTS.glob("*-published-table.json"):
        if old != place:
            old.unlink()
    write_whole(place, json.dumps(found, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Predict, keep, fill; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fill", action="store_true", help="predict nothing: fill from what is kept")
    if not parser.parse_args(argv).fill:
        predict()
    found = json.loads(stored().read_text(encoding="utf-8"))
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8"), found, stored().name))
    write_whole(README, readme_filled(README.read_text(encoding="utf-8"), found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
