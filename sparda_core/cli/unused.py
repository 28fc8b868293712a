"""Options that a command would pass over in the way that it is used: they are refused, so that none misleads."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from sparda_core.cli.parser import Parser
from sparda_core.errors import ConfigError

#: Options of every command and of every way to use it.
_ALWAYS = frozenset({"json", "debug"})


def refuse_unused(
    args: argparse.Namespace, declare: Callable[[Parser], None], used: Collection[str], *, where: str
) -> None:
    """Raise ConfigError for the first option that says other than its default and is not among `used`.

    args     as parsed; changed values would count as given
    declare  what declared the options
    used     attributes of `args` that this way to use the command looks at
    where    that way, in words
    """
    parser = Parser(prog="", description="")
    declare(parser)
    for action in parser.options:
        usual = action.default
        if isinstance(usual, str) and callable(action.type):
            usual = action.type(usual)  # as argparse does it
        if action.dest not in (*used, *_ALWAYS) and getattr(args, action.dest, usual) != usual:
            raise ConfigError(f"{action.option_strings[0]} does nothing with {where}; leave it out")
