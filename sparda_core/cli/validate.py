"""`sparda validate`: predictions held against measurements, of ours and of others. Loads no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparda_core.cli import validate_cells, validate_published, validate_report
from sparda_core.cli.options import add_json
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import ConfigError

#: Options of each way to use the command, by its name in words.
_FILES = ("profile", "out", "csv")
_GPU_CELLS = ("cells", "only", "most")
_MEASURED = (*_FILES, "replay_steps", "measure_only", "rounds", "resume")
REPORT, PUBLISHED, DRAW, LIST, PREDICT = "--report", "--published", "--draw", "--list", "--predict-only"
ON_CPU, ON_GPU, UNPREDICTED = "--device cpu", "--device cuda", "--measure-only"
USED = {
    REPORT: (*_FILES, "report", "no_figures"),
    PUBLISHED: (*_FILES, "published", "churn", "launch_us", "uva_gb_s", "no_fit", "sensitivity", "figure"),
    DRAW: ("draw", "profile", "out", "without"),
    LIST: ("list", *_GPU_CELLS),
    PREDICT: (*_FILES, "predict_only", "replay_steps"),
    ON_CPU: (*_MEASURED, "device", "model", "max_tokens", "threads"),
    ON_GPU: (*_MEASURED, *_GPU_CELLS, "round_steps", "timelines", "limit_s"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda validate`."""
    parser.add_argument(
        "--profile", metavar="NAME|FILE",
        help="the machine predicted (default: h200 for cells of a GPU, for those of a CPU the one calibrated for them, "
        "h100-sxm with --published)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="PATH",
        help="folder of records (default: sparda-validation); with --draw and --published the file to write, "
        "with --report the folder of the report (default: beside the records)",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write one line a cell")
    validate_cells.add_arguments(parser)
    validate_report.add_arguments(parser)
    validate_published.add_arguments(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and predict cells, judge stored ones, or predict the published table."""
    if args.report is not None and args.published:
        raise ConfigError("--report judges stored cells, --published the paper's table; give one of them")
    way = way_of(args)
    refuse_unused(args, add_arguments, USED[way], where=way)
    if args.measure_only:
        left = [name for name in USED[way] if name not in ("profile", "replay_steps")]
        refuse_unused(args, add_arguments, left, where=UNPREDICTED)
    if way == REPORT:
        return validate_report.run(args)
    return validate_published.run(args) if way == PUBLISHED else validate_cells.run(args)


def way_of(args: argparse.Namespace) -> str:
    """How the command is used, a key of USED: the first that the options ask for."""
    asked = {
        REPORT: args.report is not None, PUBLISHED: args.published, DRAW: args.draw is not None, LIST: args.list,
        PREDICT: args.predict_only, ON_CPU: args.device == "cpu",
    }  # fmt: skip
    return next((way for way, there in asked.items() if there), ON_GPU)
