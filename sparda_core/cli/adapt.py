"""`sparda adapt`: continue a model's own training under sparse attention; the trainer is sparda_core.distill."""

from __future__ import annotations

import argparse

from sparda_core.cli.parser import Parser
from sparda_core.files import check_place


def add_arguments(parser: Parser) -> None:
    """Options of the trainer; loads torch."""
    from sparda_core.distill.adapt_command import add_arguments as add

    add(parser)


def run(args: argparse.Namespace) -> int:
    """Train, having seen first that the result can be written."""
    from sparda_core.distill.adapt_command import run as adapt

    for place in (args.checkpoint or args.out.with_name(args.out.name + ".checkpoint"), args.results):
        if place is not None:
            check_place(place)
    return int(adapt(args))
