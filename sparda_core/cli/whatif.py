"""`sparda whatif`: a grid of predictions, what wins where, and where one choice stops beating another. No torch."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.knobs import add_knobs, scenario_of
from sparda_core.cli.options import POSITIVE, add_json
from sparda_core.cli.parser import number
from sparda_core.cli.screen import show_json
from sparda_core.files import check_place, write_whole
from sparda_core.whatif.asked import Question, question
from sparda_core.whatif.axes import MOST_POINTS
from sparda_core.whatif.backends import BACKENDS, open_pool

if TYPE_CHECKING:
    from sparda_core.whatif.crossover import Found
    from sparda_core.whatif.study import Study

#: Points for which one more process is worth starting.
POINTS_PER_JOB = 100
#: A study of the package has a few hundred.
POINTS_OF_A_STUDY = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda whatif`."""
    add_knobs(parser)
    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "--grid", nargs="+", action="extend", default=[], metavar="KNOB=VALUES",
        help="an axis: values and ranges, LOW:HIGH:COUNT or LOW:HIGH:logCOUNT, such as batch=1,2,4 link_gb_s=10:60:6",
    )  # fmt: skip
    grid.add_argument(
        "--between", nargs="+", action="extend", default=[], metavar="KNOB=FIRST,SECOND",
        help="compare two choices, such as runtime=offload-sync,offload-prefetch; several knobs change together",
    )  # fmt: skip
    grid.add_argument(
        "--crossover", metavar="KNOB[=LOW:HIGH]",
        help="find by bisection where the second of --between starts, or stops, beating the first",
    )  # fmt: skip
    grid.add_argument(
        "--lead-by", type=number(float, least=1e-3, most=1e3), default=1.0, metavar="TIMES",
        help="crossover: how many times faster the second must be to win",
    )  # fmt: skip
    grid.add_argument(
        "--choose", nargs="+", metavar="KNOB", help="axes on which one may choose (default: method, slots and copies)"
    )
    grid.add_argument("--most-points", type=POSITIVE, default=MOST_POINTS, metavar="POINTS", help="points allowed")
    grid.add_argument("--study", metavar="NAME", help="a study that comes with the package: lookahead")
    _add_running(parser)
    _add_output(parser)


def _add_running(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("running")
    run.add_argument(
        "--jobs", type=number(int, least=1, most=4096), metavar="N",
        help="processes (or threads) here (default: as many as there are cores and hundreds of points)",
    )  # fmt: skip
    run.add_argument("--backend", default="loky", metavar="NAME", help=f"where: {', '.join(BACKENDS)}; loky: processes")
    run.add_argument("--address", metavar="ADDRESS", help="of the Dask scheduler or Ray cluster that is there already")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder that keeps rows as they are finished, and figures")
    run.add_argument("--resume", action="store_true", help="go on with the study in --out")


def _add_output(parser: argparse.ArgumentParser) -> None:
    show = parser.add_argument_group("output")
    show.add_argument(
        "--plot", nargs="+", action="extend", default=[], metavar="KNOB[,KNOB]",
        help="figures in --out (PNG and SVG): lines over one numeric axis, or a heat map over two",
    )  # fmt: skip
    show.add_argument("--value", default="tokens_per_s", metavar="NAME", help="what the figures show")
    show.add_argument(
        "--at", nargs="+", action="extend", default=[], metavar="KNOB=VALUE",
        help="where figures hold the axes that they do not show (default: their first value)",
    )  # fmt: skip
    show.add_argument("--csv", type=Path, metavar="FILE", help="also write every row as CSV")
    add_json(show)


def run(args: argparse.Namespace) -> int:
    """Predict every point, print what wins where, and write what was asked for."""
    if args.csv is not None:
        check_place(args.csv)
    if args.study is not None:
        from sparda_core.cli.whatif_study import run_named

        return run_named(args, args.jobs or usual_jobs(POINTS_OF_A_STUDY))
    asked = question(scenario_of(args), args)
    study, found = _compute(args, asked)
    if args.csv is not None:
        from sparda_core.whatif.store import table

        write_whole(args.csv, table(study.grid, study.rows))
    _show(args, asked, study, found)
    return 0


def usual_jobs(points: int) -> int:
    """As many processes as there are cores, where the points are worth it and joblib is there."""
    worth = 1 + points // POINTS_PER_JOB if importlib.util.find_spec("joblib") else 1
    return min(len(os.sched_getaffinity(0)), worth)


def _compute(args: argparse.Namespace, asked: Question) -> tuple[Study, list[Found]]:
    from sparda_core.cli.running import progress
    from sparda_core.whatif.crossover import crossovers_in
    from sparda_core.whatif.study import run_grid

    found: list[Found] = []
    # A process without a point would be started all the same.
    jobs = min(args.jobs or usual_jobs(len(asked.grid)), len(asked.grid))
    with open_pool(args.backend, jobs=jobs, address=args.address) as pool, progress() as report:
        study = run_grid(asked.grid, pool=pool, folder=args.out, resume=args.resume, report=report)
        if asked.crossover is not None and asked.between is not None:
            found = crossovers_in(
                asked.cells, asked.settings(1), asked.settings(0), asked.crossover, pool=pool, report=report
            )
    return study, found


def _show(args: argparse.Namespace, asked: Question, study: Study, found: list[Found]) -> None:
    from sparda_core.cli.whatif_tables import show_study
    from sparda_core.whatif.store import write_study
    from sparda_core.whatif.summary import summary

    document: dict[str, Any] = summary(study, asked.between, found, asked.choices)
    if args.out is not None:
        figures = _draw(args, asked, study, found)
        document |= {"figures": [path.name for path in figures]}
        write_study(args.out, document)
    if args.json:
        show_json({**document, "rows": study.rows})
    else:
        show_study(asked, study, found, args.out)


def _draw(args: argparse.Namespace, asked: Question, study: Study, found: list[Found]) -> list[Path]:
    written: list[Path] = []
    if not asked.plots:
        return written
    from sparda_core.whatif.figures import save_figure
    from sparda_core.whatif.heat_map import plot_heat
    from sparda_core.whatif.plots import plot_lines

    for names in asked.plots:
        if len(names) == 1:
            marks = asked.marks(names[0], found)
            figure = plot_lines(study, names[0], value=args.value, at=asked.at, crossings=marks)
        else:
            figure = plot_heat(study, names[0], names[1], value=args.value, between=asked.between, at=asked.at)
        written += save_figure(figure, args.out / f"{args.value}-over-{'-and-'.join(names)}")
    return written
