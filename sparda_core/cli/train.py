"""`sparda train`: Forecast projections for a model; the trainer itself is sparda_core.distill."""

from __future__ import annotations

import argparse

from sparda_core.cli.parser import Parser
from sparda_core.files import check_place

#: Options whose help the trainer leaves to us, with their units.
HELP = {
    "steps": "optimiser steps, one window of text each",
    "window": "tokens of a window",
    "positions": "query positions drawn from each window",
    "first_position": "earliest of these positions, in tokens from the window's start",
    "lr": "peak learning rate",
    "seed": "of the windows, the positions and a random start",
    "init": "where the projections start: the mean of each group's own query rows, or random",
    "sink": "first blocks, always attended and never learnt",
    "local": "blocks before the current one, likewise",
    "device": "what trains it",
}


def add_arguments(parser: Parser) -> None:
    """Options of the trainer; loads torch."""
    from sparda_core.distill.command import add_arguments as add

    add(parser)
    parser.explain(HELP)


def run(args: argparse.Namespace) -> int:
    """Train, having seen first that the result can be written."""
    from sparda_core.distill.command import run as train

    for place in (args.out, args.results, args.checkpoint):
        if place is not None:
            check_place(place)
    return int(train(args))
