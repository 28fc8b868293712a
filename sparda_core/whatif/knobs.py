"""Knobs: what one field of a Scenario takes, said once for Python, the command line and every error."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError

#: Key of a field's metadata under which its Knob lies.
KNOB = "knob"
#: More than any count that a machine of today holds: block ids are 32-bit numbers.
MOST = 2**31 - 1
#: Steps, or chunks of a prefill, of one prediction: as many as take some ten seconds of computing.
MOST_STEPS = 1000


@attrs.frozen(kw_only=True, cache_hash=True)
class Knob:
    """What one knob takes.

    name      of the field; the option is the same with dashes
    kind      int, float, str, bool, or dict for NAME=VALUE pairs
    help      one line, with the unit
    metavar   what stands for the value in a usage line
    group     heading under which the command line lists it
    least     least value of a number, itself allowed
    most      greatest value of a number, itself allowed
    choices   all values of a text; empty where any will do
    optional  whether None (not given) is a value
    """

    name: str = ""
    kind: type
    help: str
    metavar: str
    group: str
    least: float = 0
    most: float = MOST
    choices: tuple[str, ...] = ()
    optional: bool = False

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, so that it has a slope and can be swept."""
        return self.kind in (int, float)

    def check(self, value: Any) -> None:
        """Raise ConfigError (UnknownNameError for a choice) unless `value` is one that the knob takes."""
        if value is None and self.optional:
            return
        if self.kind is dict:
            return  # its converter has looked at it
        right = isinstance(value, (int, float) if self.kind is float else self.kind)
        if not right or (self.numeric and isinstance(value, bool)):
            raise ConfigError(f"{self.name}={value!r} must be {_WANTED[self.kind]}")
        if self.choices and value not in self.choices:
            raise UnknownNameError(what=self.name, name=value, known=self.choices)
        if self.numeric and not (math.isfinite(value) and self.least <= value <= self.most):
            raise ConfigError(f"{self.name}={value} must be between {self.least:.10g} and {self.most:.10g}")


_WANTED = {int: "an integer", float: "a number", str: "a text", bool: "True or False"}


def knob(
    default: Any, kind: type, text: str, *, metavar: str = "", group: str = "method",
    least: float = 0, most: float = MOST, choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A field of a Scenario; None as its default makes it optional."""
    made = Knob(
        kind=kind, help=text, metavar=metavar, group=group, least=least, most=most, choices=choices,
        optional=default is None,
    )  # fmt: skip
    more: dict[str, Any] = {"converter": as_pairs} if kind is dict else {}
    return attrs.field(default=default, metadata={KNOB: made}, validator=_validate, **more)


def _validate(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    knob_of(attribute).check(value)


def knob_of(attribute: attrs.Attribute[Any]) -> Knob:
    """The Knob of a field, under the field's name."""
    return _named(attribute.metadata[KNOB], attribute.name)


@functools.cache
def _named(knob: Knob, name: str) -> Knob:
    return attrs.evolve(knob, name=name)


def as_pairs(value: Any) -> tuple[tuple[str, Any], ...]:
    """Options as sorted (name, value) pairs, which can be compared and hashed; raises ConfigError."""
    if isinstance(value, Mapping):
        return as_pairs(tuple(value.items()))
    try:
        pairs = tuple(sorted((str(name), given) for name, given in value))
        hash(pairs)
    except (TypeError, ValueError) as wrong:
        raise ConfigError(f"options={value!r} must map names to plain values, such as {{'seed': 7}}") from wrong
    return pairs
