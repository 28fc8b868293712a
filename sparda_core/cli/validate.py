"""`sparda validate`: predictions held against measurements, of ours and of others. Loads no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from sparda_core.cli import validate_cells, validate_published, validate_report
from sparda_core.cli.options import add_json
from sparda_core.errors import ConfigError


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
    if args.report is None:
        return validate_published.run(args) if args.published else validate_cells.run(args)
    if args.published:
        raise ConfigError("--report judges stored cells, --published the paper's table; give one of them")
    return validate_report.run(args)
