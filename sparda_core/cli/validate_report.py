"""`sparda validate --report`: what predictions of stored cells are worth. Loads no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.cli.screen import show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.files import check_folder, check_place, write_whole

if TYPE_CHECKING:
    from sparda_core.bench.verdict.judged import Verdict

#: Tables that a terminal gets; the rest lie in the report's files.
SHOWN = ("strata", "bars", "models", "wins", "parts", "decisions", "worst", "repeats")
#: Name of the report's folder, inside of a validation's folder, or else here.
INSIDE, HERE = "report", "sparda-validation-report"


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a report."""
    report = parser.add_argument_group("a report on stored cells: errors, bars, simpler models, parts")
    report.add_argument(
        "--report", type=Path, metavar="PATH",
        help="folder of a validation, its compact document, or decode.json of `sparda bench decode`; measures nothing",
    )  # fmt: skip
    report.add_argument(
        "--into", type=Path, metavar="DIR",
        help=f"where report.json, cells.csv, figures and traces go (default: PATH/{INSIDE}, or {HERE} for a file)",
    )  # fmt: skip
    report.add_argument("--no-figures", action="store_true", help="leave out the figures, which need matplotlib")


def run_report(args: argparse.Namespace, profile: str | None) -> int:
    """Judge the cells, write the report, show its tables.

    profile  name or file; None: a CPU validation's own, or the H200's
    """
    from sparda_core.bench.verdict import run
    from sparda_core.bench.verdict.judged import verdict_csv
    from sparda_core.bench.verdict.tables import TABLES
    from sparda_core.cli.running import progress

    if not args.report.exists():
        raise ConfigError(f"--report {args.report} does not exist; measure cells first, or name a stored result")
    folder = args.into or (args.report / INSIDE if args.report.is_dir() else Path(HERE))
    check_folder(folder)
    for place in (args.out, args.csv):
        if place is not None:
            check_place(place)
    if not args.no_figures:
        from sparda_core.bench.plots import require_matplotlib

        require_matplotlib()
    source = run.read_source(args.report)
    loaded = run.profile_of(source, args.report, profile)
    with progress() as tell:
        verdict = run.make_verdict(source, loaded, asked=profile or loaded, progress=tell)
    written = run.write_report(folder, verdict, source=source, asked=profile or loaded, figures=not args.no_figures)
    if args.out is not None:
        write_whole(args.out, verdict.to_json())
    if args.csv is not None:
        write_whole(args.csv, verdict_csv(verdict))
    if args.json:
        show_json({"title": verdict.title, "profile": verdict.profile, **run.plain_tables(verdict), "files": written})
        return 0
    _show(verdict)
    for table in (TABLES[name](verdict) for name in SHOWN):
        if table.lines:
            show_table(table.title, table.head, table.lines)
    sys.stdout.write("Wrote " + ", ".join(map(str, written)) + "\n")
    return 0


def _show(verdict: Verdict) -> None:
    from sparda_core.bench.verdict.page import summary
    from sparda_core.cli.screen import say

    say(verdict.title, summary(verdict))

