"""`sparda adapt`: continue a model's own training under sparse attention; the trainer is sparda_core.distill."""

from __future__ import annotations

import argparse

from sparda_core.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Options of the trainer; loads torch."""
    from sparda_core.distill.adapt_command import add_arguments as add

    add(parser)


def run(args: argparse.Namespace) -> int:
    """Train, and write the model."""
    from sparda_core.distill.adapt_command import run as adapt

    return int(adapt(args))
