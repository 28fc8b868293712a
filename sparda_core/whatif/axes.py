"""Axes of a grid: the values that a knob takes, checked against the knob's type, and the text that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.whatif.knobs import Knob
from sparda_core.whatif.scenario import Scenario

#: Figures that a value inside a range keeps: 0.02340 is as good as 0.0234034731932072, and can be typed again.
RANGE_FIGURES = 4
#: Points of one study unless its owner asks for more: half an hour on two cores at a few ms a point.
MOST_POINTS = 100_000


def knob_named(name: str) -> Knob:
    """The knob of that name, dashes for underscores allowed; raises UnknownNameError with the nearest one."""
    every = {key: knob for key, knob in Scenario.knobs().items() if knob.kind is not dict}
    tidy = name.strip().replace("-", "_")
    if tidy not in every:
        raise UnknownNameError(what="knob", name=name.strip(), known=every)
    return every[tidy]


def value_of(knob: Knob, text: str) -> Any:
    """A value from text: `none` where the knob has one; raises ConfigError for what the knob does not take."""
    text = text.strip()
    if text.lower() == "none" and knob.optional:
        return None
    value: Any = text
    if knob.kind is bool:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif knob.numeric:
        try:
            value = knob.kind(text)
        except ValueError:
            value = text
    return checked(knob, value)


def checked(knob: Knob, value: Any) -> Any:
    """`value` as the knob's own type (numpy scalars and whole floats welcome); raises ConfigError for anything else."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if value == "":
        raise ConfigError(f"{knob.name} has an empty value; leave it out")
    knob.check(value)
    return float(value) if knob.kind is float and value is not None else value


def parse_axis(text: str, *, most: int = MOST_POINTS) -> tuple[str, tuple[Any, ...]]:
    """`NAME=ITEM,ITEM,...` as a knob's name and its values, in order, without repeats.

    An item is a value, or LOW:HIGH:COUNT, or LOW:HIGH:logCOUNT (numbers only; both ends belong to it).
    raises  UnknownNameError, ConfigError for an empty axis, a wrong value, or more than `most` values
    """
    name, separator, listed = text.partition("=")
    if not separator:
        raise ConfigError(f"grid {text!r} must be NAME=VALUES, such as batch=1,2,4 or link_gb_s=10:60:6")
    knob = knob_named(name)
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
