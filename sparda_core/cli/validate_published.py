"""`sparda validate --published`: predictions held against figures that others measured. Loads no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.parser import number
from sparda_core.cli.screen import cell, console, plain, show_json, show_table
from sparda_core.files import check_place, write_whole

if TYPE_CHECKING:
    from sparda_core.published.report import Progress, Report

#: Names of the two sets of assumptions.
PLAIN, FITTED = "nothing fitted", "launch time fitted to one cell"
#: The machine of the published table.
PROFILE = "h100-sxm"
_RATE = number(float, least=1e-3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the published table."""
    assumed = parser.add_argument_group("the published table")
    assumed.add_argument(
        "--published", action="store_true",
        help="the decode table of the SparDA paper, from a plan of the release's own schedule",
    )  # fmt: skip
    assumed.add_argument(
        "--churn", type=number(float, least=0, most=1), default=0.111, metavar="SHARE",
        help="share of a selection that was not in the last one: 1 - 0.889, InfLLM-V2 on a 1B model (NOSA)",
    )  # fmt: skip
    assumed.add_argument(
        "--launch-us", type=_RATE, metavar="US",
        help="host time of a launch; nothing is fitted then (default: the profile's, then fitted to one cell)",
    )  # fmt: skip
    assumed.add_argument(
        "--uva-gb-s", type=number(float, least=0), default=35.2, metavar="GB/S",
        help="most that kernels read of host memory, 1e9 bytes a second: eight H100s, nvbandwidth issue 24; "
        "0: the profile's",
    )  # fmt: skip
    assumed.add_argument("--no-fit", action="store_true", help="leave out the prediction with a fitted launch time")
    assumed.add_argument(
        "--sensitivity", action="store_true",
        help="also change each assumption alone, and find the churn that each cell would need (a minute)",
    )  # fmt: skip
    assumed.add_argument("--figure", type=Path, metavar="FILE", help="also draw the table (PNG)")


def run(args: argparse.Namespace) -> int:
    """Predict the table, show it, and write what was asked for."""
    from sparda_core.published.document import csv_text, document

    args.profile = args.profile or PROFILE
    for place in (args.out, args.csv, args.figure):
        if place is not None:
            check_place(place)
    if args.figure is not None:
        from sparda_core.bench.plots import require_matplotlib

        require_matplotlib()
    reports, more = _work(args)
    found = {**document(reports, **more), "provenance": _provenance(args)}
    if args.out is not None:
        write_whole(args.out, json.dumps(plain(found), indent=1, allow_nan=False) + "\n")
    if args.csv is not None:
        write_whole(args.csv, csv_text(reports))
    if args.figure is not None:
        _draw(args.figure, reports)
    if args.json:
        show_json(found)
    else:
        _tables(reports)
        if more:
            _further(more)
    return 0


def _work(args: argparse.Namespace) -> tuple[dict[str, Report], dict[str, Any]]:
    """Reports by the name of their assumptions; with --sensitivity what `document` takes besides."""
    from sparda_core.published import inverse
    from sparda_core.published import report as study
    from sparda_core.published.cells import Assumptions
    from sparda_core.published.table import cells

    assumed = Assumptions(
        profile=args.profile, churn=args.churn,
        launch_s=None if args.launch_us is None else args.launch_us * 1e-6,
        uva_bytes_per_s=args.uva_gb_s * 1e9 or None,
    )  # fmt: skip
    fits = args.launch_us is None and not args.no_fit
    each = len(cells(too_large=True))
    total = each * (1 + fits + (len(study.variations(assumed)) if args.sensitivity else 0))
    with _progress(total) as progress:
        reports = {PLAIN: study.make_report(assumed, progress=progress)}
        if fits:
            fitted = study.fit_launch(assumed)
            reports[FITTED] = study.make_report(fitted, progress=progress, fitted=study.FITTED)
        if not args.sensitivity:
            return reports, {}
        best = list(reports.values())[-1]
        tried = study.sensitivity(best.assumed, progress=progress, fitted=best.fitted)
        implied = {
            f"batch {r.cell.batch}, {r.cell.mode}": churn
            for r in best.results
            if (churn := inverse.implied_churn(r, best.assumed)) is not None
        }
        checks = inverse.cross_checks(best.results, best.assumed)
    return reports, {"tried": tried, "implied": implied, "checks": checks}


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    """Cells done, on standard error; silent where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("cells", total=total)
        yield lambda: bar.advance(task)


def _tables(reports: dict[str, Report]) -> None:
    from sparda_core.published.document import cell_rows, summary
    from sparda_core.published.table import SOURCE

    names = list(reports)
    by_name = [cell_rows(report) for report in reports.values()]
    heads = {PLAIN: "nothing fitted", FITTED: "launch fitted"}
    columns = ["batch", "mode", "published", *(word for name in names for word in (heads[name], "error"))]
    body = [
        [rows[0]["batch"], rows[0]["mode"], _figure(rows[0]), *_figures(rows)] for rows in zip(*by_name, strict=True)
    ]
    show_table(f"Decode tokens/s: {SOURCE}", [*columns, "bound"], body, notes=_notes(reports))
    lines = ("cells_judged", "median_abs_error", "max_abs_error", "winners_right", "batches_judged", "pairs_in_order",
             "pairs", "memory_right", "memory_cells")  # fmt: skip
    sums = [summary(report) for report in reports.values()]
    show_table("In short", ("", *names), [
        (line.replace("_", " "), *(_share(one[line]) if line.endswith("_error") else one[line] for one in sums))
        for line in lines
    ])  # fmt: skip
    _ratios(sums[-1])


def _further(more: dict[str, Any]) -> None:
    from sparda_core.published.document import SENSITIVE, summary

    changed = [(one.what, *(summary(one.report)[key] for key in SENSITIVE)) for one in more["tried"]]
    show_table("One assumption changed", ("changed", *(key.replace("_", " ") for key in SENSITIVE)), changed)
    show_table("Churn at which a cell comes out as published", ("cell", "churn"), list(more["implied"].items()))
    rows = [
        (one.batch, one.churn, one.published_tokens_per_s, one.predicted_tokens_per_s, f"{one.error:+.1%}")
        for one in more["checks"]
    ]
    show_table(
        "Prefetch, with the churn that the same batch without prefetch implies",
        ("batch", "churn", "published", "predicted", "error"), rows,
    )  # fmt: skip


def _ratios(found: dict[str, Any]) -> None:
    """Winners, and what SparDA and its prefetch are said to gain, of the last set of assumptions."""
    winners = {one["batch"]: one for one in found["winners"]}
    rows = []
    for sync, alone in zip(found["speedup_over_sync"], found["prefetch_gain"], strict=True):
        winner = winners.get(sync["batch"], {})
        gains = (None if alone["published"] is None else alone[key] for key in ("published", "predicted"))
        names = (winner.get(key) for key in ("published", "predicted", "right"))
        rows.append((sync["batch"], *names, sync["published"], sync["predicted"], *gains))
    best = found["best_over_resident"]
    note = (
        f"Batch 64 of SparDA over batch 4 without offload: {cell(best['published'])} times published, "
        f"{cell(best['predicted'])} predicted."
    )
    show_table(
        "Fastest mode; SparDA over synchronous offload; prefetch over none",
        ("batch", "published", "predicted", "right", "over sync", "predicted", "prefetch", "predicted"), rows,
        notes=[note],
    )  # fmt: skip


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _figure(row: dict[str, Any]) -> str:
    return f"{row['published_tokens_per_s']:.1f}" if row["published"] == "time" else str(row["published"])


def _figures(rows: tuple[dict[str, Any], ...]) -> list[str]:
    shown = []
    for row in rows:
        fits = row["predicted_tokens_per_s"] is not None
        shown.append(f"{row['predicted_tokens_per_s']:.1f}" if fits else "out of memory")
        error = "-" if row["error"] is None else f"{row['error']:+.1%}"
        shown.append("fitted" if row["fitted"] else error)
    return [*shown, rows[-1]["bound"] or "-"]


def _notes(reports: dict[str, Report]) -> list[str]:
    last = list(reports.values())[-1]
    assumed = last.assumed
    uva = "the profile's" if assumed.uva_bytes_per_s is None else f"{assumed.uva_bytes_per_s / 1e9:.3g} GB/s"
    launch = "the profile's" if assumed.launch_s is None else f"{assumed.launch_s * 1e6:.3g} us"
    wrong = [
        f"Memory: batch {r.cell.batch}, {r.cell.mode} is published as out of memory and is predicted to fit."
        if r.cell.out_of_memory else f"Memory: batch {r.cell.batch}, {r.cell.mode} ran, and is predicted not to fit."
        for r in last.memory_wrong
    ]  # fmt: skip
    rests_on = (
        f"Columns: {', then '.join(reports)}. Churn {assumed.churn:.1%}, kernels read {uva} of host memory, "
        f"in the last columns a launch takes {launch}."
    )
    return [
        rests_on,
        "Predicted from a plan of the release's schedule; no cell was measured by us. See docs/published.md.",
        *wrong,
    ]


def _provenance(args: argparse.Namespace) -> dict[str, Any]:
    from sparda_core.bench.provenance import provenance
    from sparda_core.simulator.profile_file import load_profile

    profile = load_profile(args.profile)
    return {**provenance(), "profile": profile.name, "profile_digest": profile.digest, "profile_date": profile.date}


def _draw(path: Path, reports: dict[str, Report]) -> None:
    from sparda_core.published.figure import plot
    from sparda_core.published.table import SOURCE

    name, report = list(reports.items())[-1]
    title = (
        f"{SOURCE}\npredicted by sparda, {name}; median error {report.median_error:.0%}, largest {report.max_error:.0%}"
    )
    plot(report, path, title=title)
