"""Parsing that fails with our own errors: one line, the nearest known name, exit code 2."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from sparda_core.errors import ConfigError


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows every default that a reader could not guess."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is None or action.default is False or action.default == []
        if isinstance(action.default, tuple):
            return f"{action.help} (default: {','.join(map(str, action.default))})"
        return action.help if silent else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of leaving the process."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=Formatter)

    def error(self, message: str) -> NoReturn:
        """Called by argparse for whatever it refuses; raises ConfigError."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def explain(self, words: Mapping[str, str]) -> None:
        """Set the help of options, by the name that their value gets; for options declared elsewhere."""
        for action in self._actions:
            action.help = words.get(action.dest, action.help)

    @property
    def options(self) -> list[argparse.Action]:
        """What was declared with a leading dash and has a value, in order."""
        return [action for action in self._actions if action.option_strings and action.dest != "help"]

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`; raises ConfigError, with the nearest known option for an unknown one."""
        args, unknown = self.parse_known_args(argv)
        if not unknown:
            return args
        word = unknown[0].partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word, known, n=1) if word.startswith("-") else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{word!r} is not an option of this command; {hint}see `{self.prog} --help`")


def number(kind: type[int | float], *, least: float, most: float | None = None) -> Callable[[str], Any]:
    """An argparse type: an int or a float within bounds, both bounds allowed."""

    def convert(text: str) -> int | float:
        want = "an integer" if kind is int else "a number"
        span = f">= {least}" if most is None else f"between {least} and {most}"
        refusal = argparse.ArgumentTypeError(f"{text!r} must be {want} {span}")
        try:
            value = kind(text)
        except ValueError:
            raise refusal from None
        if not value >= least or value == math.inf or (most is not None and value > most):
            raise refusal
        return value

    return convert
