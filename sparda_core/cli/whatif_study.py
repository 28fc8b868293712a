"""`sparda whatif --study NAME`: a study that comes with the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.text import Text

from sparda_core.cli.knobs import scenario_of
from sparda_core.cli.screen import console, show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.whatif.asked import axes_of
from sparda_core.whatif.backends import open_pool
from sparda_core.whatif.figures import require_matplotlib, save_figure
from sparda_core.whatif.reading import Sheet
from sparda_core.whatif.studies import study_named
from sparda_core.whatif.study import run_grid


def run_named(args: argparse.Namespace, jobs: int) -> int:
    """Run it, print its tables, and with --out keep rows, study and figures."""
    from sparda_core.cli.running import progress
    from sparda_core.whatif.store import table, write_study

    named = study_named(args.study)
    for option in ("between", "crossover", "choose", "plot", "at"):
        if getattr(args, option):
            raise ConfigError(f"--{option} means nothing to --study {args.study}, which sets its own; leave it out")
    if args.out is not None:
        require_matplotlib()
    elif args.resume:
        raise ConfigError("--resume needs a folder: give --out DIR")
    grid = named.grid(scenario_of(args), axes_of(args.grid, args.most_points))
    with open_pool(args.backend, jobs=jobs, address=args.address) as pool, progress() as report:
        study = run_grid(grid, pool=pool, folder=args.out, resume=args.resume, report=report)
        sheets = named.tables(study, pool, report)
    document = {**study.document(), "study": args.study, "question": named.question, "tables": [
        {"title": sheet.title, "rows": sheet.records(), "notes": sheet.notes} for sheet in sheets
    ]}  # fmt: skip
    if args.csv is not None:
        write_whole(args.csv, table(study.grid, study.rows))
    if args.out is not None:
        written = [save_figure(figure, args.out / stem) for stem, figure in named.figures(study).items()]
        document |= {"figures": [path.name for both in written for path in both]}
        write_study(args.out, document)
    if args.json:
        show_json({**document, "rows": study.rows})
        return 0
    _show(named.question, [sheet for sheet in sheets if not sheet.long])
    return 0


def _show(question: str, sheets: Sequence[Sheet]) -> None:
    console().print(Text(question, style="bold"))
    for sheet in sheets:
        show_table(sheet.title, sheet.columns, sheet.rows, notes=sheet.notes)
