"""Axes of a grid: the values that a knob takes, checked against the knob's type, and the text that lists them."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.scenario import Scenario

#: Figures that a value inside a range keeps: 0.02340 is as good as 0.0234034731932072, and can be typed again.
RANGE_FIGURES = 4
#: Points of one study unless its owner asks for more: half an hour on two cores at a few ms a point.
MOST_POINTS = 100_000


@attrs.frozen(kw_only=True)
class Knob:
    """A field of Scenario: its name, the type of its values, whether None (`none`) is one of them."""

    name: str
    kind: type
    optional: bool

    @property
    def numeric(self) -> bool:
        """Whether its values lie on a line: ranges, crossovers and heat maps need that."""
        return self.kind in (int, float)


def knobs() -> dict[str, Knob]:
    """Every knob of Scenario that a text can set, by name."""
    found = (_knob(name, hint) for name, hint in typing.get_type_hints(Scenario).items())
    return {knob.name: knob for knob in found if knob is not None}


def _knob(name: str, hint: Any) -> Knob | None:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    kinds = [part for part in parts if part is not types.NoneType]
    if typing.get_origin(hint) is typing.Literal:
        kinds = [str]
    known = len(kinds) == 1 and kinds[0] in (int, float, str, bool)
    return Knob(name=name, kind=kinds[0], optional=types.NoneType in parts) if known else None


def knob_named(name: str) -> Knob:
    """The knob of that name; raises UnknownNameError with the nearest one."""
    every = knobs()
    if name not in every:
        raise UnknownNameError(what="knob", name=name, known=every)
    return every[name]


def value_of(knob: Knob, text: str) -> Any:
    """A value from text: `none` where the knob has one; raises ConfigError for what is no value of its type."""
    text = text.strip()
    if text.lower() == "none" and knob.optional:
        return None
    if knob.kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{knob.name}={text!r} must be true or false")
        return text.lower() == "true"
    try:
        value = knob.kind(text)
    except ValueError:
        value = text
    return checked(knob, value)


def checked(knob: Knob, value: Any) -> Any:
    """`value` as the knob's type (numpy scalars and whole floats welcome); raises ConfigError for anything else."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if value is None and knob.optional:
        return None
    if knob.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    right = isinstance(value, knob.kind) and isinstance(value, bool) == (knob.kind is bool)
    if not right or (isinstance(value, str) and not value):
        wants = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}[knob.kind]
        raise ConfigError(f"{knob.name}={value!r} must be {wants}" + (" or none" if knob.optional else ""))
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{knob.name}={value} must be finite; leave the point out")
    return value


def parse_axis(text: str, *, most: int = MOST_POINTS) -> tuple[str, tuple[Any, ...]]:
    """`NAME=ITEM,ITEM,...` as a knob's name and its values, in order, without repeats.

    An item is a value, or LOW:HIGH:COUNT, or LOW:HIGH:logCOUNT (numbers only; both ends belong to it).
    raises  UnknownNameError, ConfigError for an empty axis, a wrong value, or more than `most` values
    """
    name, separator, listed = text.partition("=")
    if not separator:
        raise ConfigError(f"grid {text!r} must be NAME=VALUES, such as batch=1,2,4 or link_gb_s=10:60:6")
    knob = knob_named(name.strip().replace("-", "_"))
    items = [item for item in listed.split(",") if item.strip()]
    if not items:
        raise ConfigError(f"grid {text!r} has no values; list some, such as {knob.name}=1,2,4")
    values: list[Any] = []
    for item in items:
        ranged = knob.numeric and ":" in item
        values += _range(knob, item, most) if ranged else [value_of(knob, item)]
    return knob.name, without_repeats(values)


def without_repeats(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values in their order, each once."""
    return tuple(dict.fromkeys(values))


def ends(knob: Knob, text: str) -> tuple[Any, Any]:
    """LOW:HIGH as two values of a numeric knob, low < high; raises ConfigError."""
    low_text, _, high_text = text.partition(":")
    if not knob.numeric:
        raise ConfigError(f"{knob.name} is not a number, so there is nothing between two of its values")
    low, high = value_of(knob, low_text), value_of(knob, high_text)
    if low is None or high is None or not low < high:
        raise ConfigError(f"{knob.name}={text!r} must be LOW:HIGH with LOW < HIGH")
    return low, high


def _range(knob: Knob, item: str, most: int) -> list[Any]:
    parts = item.split(":")
    if len(parts) != 3:
        raise ConfigError(f"{knob.name}={item!r} must be LOW:HIGH:COUNT or LOW:HIGH:logCOUNT, such as 10:60:6")
    log = parts[2].strip().startswith("log")
    count_text = parts[2].strip().removeprefix("log")
    low, high = ends(knob, f"{parts[0]}:{parts[1]}")
    if not count_text.isdecimal() or not 2 <= int(count_text) <= most:
        raise ConfigError(f"{knob.name}={item!r}: COUNT must be a whole number between 2 and {most}")
    if log and low <= 0:
        raise ConfigError(f"{knob.name}={item!r}: a logarithmic range must start above 0")
    return [knob.kind(value) for value in spread(low, high, int(count_text), log=log, whole=knob.kind is int)]


def spread(low: float, high: float, count: int, *, log: bool, whole: bool) -> Sequence[float]:
    """`count` values from low to high, evenly or by equal factors; whole numbers may fall together."""
    inner = []
    for at in range(1, count - 1):
        share = at / (count - 1)
        value = low * (high / low) ** share if log else low + (high - low) * share
        inner.append(round(value) if whole else float(f"{value:.{RANGE_FIGURES}g}"))
    return [low, *inner, high]
