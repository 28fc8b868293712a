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
SHOWN = ("strata", "bars", "models", "wins", "parts", "decisions", "hidden", "worst", "repeats")
#: Name of the report's folder, inside of a validation's folder, or else here.
INSIDE, HERE = "report", "sparda-validation-report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a report."""
    report = parser.add_argument_group("a report on stored cells: errors, bars, simpler models, parts")
    report.add_argument(
        "--report", type=Path, metavar="PATH",
        help="folder of a validation, its compact document, or decode.json of `sparda bench decode`; measures nothing",
    )  # fmt: skip
    report.add_argument("--no-figures", action="store_true", help="leave out the figures, which need matplotlib")


def run(args: argparse.Namespace) -> int:
    """Judge the cells, write the report, show its tables."""
    from sparda_core.bench.verdict import run as judging
    from sparda_core.bench.verdict.judged import verdict_csv
    from sparda_core.bench.verdict.tables import TABLES
    from sparda_core.cli.running import progress

    if not args.report.exists():
        raise ConfigError(f"--report {args.report} does not exist; measure cells first, or name a stored result")
    folder = args.out or (args.report / INSIDE if args.report.is_dir() else Path(HERE))
    check_folder(folder)
    if args.csv is not None:
        check_place(args.csv)
    if not args.no_figures:
        from sparda_core.bench.plots import require_matplotlib

        require_matplotlib()
    source = judging.read_source(args.report)
    loaded = judging.profile_of(source, args.report, args.profile)
    asked = args.profile or loaded
    with progress() as tell:
        verdict = judging.make_verdict(source, loaded, asked=asked, progress=tell)
    written = judging.write_report(folder, verdict, source=source, asked=asked, figures=not args.no_figures)
    if args.csv is not None:
        write_whole(args.csv, verdict_csv(verdict))
    if args.json:
        told = {"title": verdict.title, "profile": verdict.profile, **judging.plain_tables(verdict)}
        show_json({**told, "files": written})
        return 0
    _show(verdict)
    for table in (TABLES[name](verdict) for name in SHOWN):
        if table.lines:
            show_table(table.title, table.head, [list(map(_bare, line)) for line in table.lines])
    sys.stdout.write("Wrote " + ", ".join(map(str, written)) + "\n")
    return 0


def _bare(value: object) -> object:
    """Without the asterisks that make a word bold on a page."""
    return value.replace("**", "") if isinstance(value, str) else value


def _show(verdict: Verdict) -> None:
    from sparda_core.bench.verdict.page import summary
    from sparda_core.cli.screen import say

    say(verdict.title, summary(verdict))

