"""`sparda train`: Forecast projections for a model; the trainer itself is sparda_core.distill."""

from __future__ import annotations

import argparse

from sparda_core.cli.parser import Parser
from sparda_core.files import check_place


def add_arguments(parser: Parser) -> None:
    """Options of the trainer; loads torch."""
    from sparda_core.distill.command import add_arguments as add

    add(parser)


def run(args: argparse.Namespace) -> int:
    """Train, having seen first that the result can be written."""
    from sparda_core.distill.command import run as train

    for place in () if args.plan else (args.out, args.results, args.checkpoint):
        if place is not None:
            check_place(place)
    return int(train(args))
