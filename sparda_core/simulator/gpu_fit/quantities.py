"""Numbers as a profile's table holds them, and small tools of the fit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparda_core.errors import ProfileError

Table = dict[str, Any]
GIGA, MICRO, KIB = 1e9, 1e-6, 1024
#: A number of a profile has so many digits: the machine repeats itself no better.
_DIGITS = 4


def measured(value: float, unit: str, source: str) -> Table:
    """A quantity of a profile's file, rounded. Raises ProfileError for what is no number."""
    if not math.isfinite(value):
        raise ProfileError(f"samples give {value} for: {source}; measure again")
    return {"value": rounded(value), "unit": unit, "source": source, "basis": "measured"}


def rounded(value: float) -> float:
    """To the digits that a profile holds."""
    return float(f"{value:.{_DIGITS}g}")


def finite(values: Iterable[float | None], what: str) -> list[float]:
    """The numbers among them; raises ProfileError where there is none. (NaN is kept as null.)"""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if not found:
        raise ProfileError(f"samples have no measure of {what}; measure that section again")
    return found


def middle(values: Iterable[float | None], what: str) -> float:
    """The median of those that are numbers."""
    return statistics.median(finite(values, what))


def root(of: Callable[[float], float], low: float, high: float, *, within: float) -> float:
    """Where a rising function is 0, by the Illinois rule; the nearer end where it is not between them.

    within  how far from 0 it may be there
    """
    at_low, at_high = of(low), of(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    here = low
    for _ in range(60):
        here = (low * at_high - high * at_low) / (at_high - at_low)
        value = of(here)
        if abs(value) <= within or high - low < 1e-9 * high:
            return here
        if value < 0:
            low, at_low, at_high = here, value, at_high / 2
            continue
        high, at_high, at_low = here, value, at_low / 2
    return here


def best(of: Callable[[float], float], choices: Sequence[float]) -> float:
    """The choice with the least misfit, the first of equals."""
    return min(choices, key=of)


def ladder(low: float, high: float, steps: int) -> list[float]:
    """So many numbers from low to high, each as many times the one before."""
    return [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]
