"""Crossovers: where along a knob one scenario stops beating another, found by bisection."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import CapacityError, ConfigError, SpardaError, UnknownNameError
from sparda_core.whatif.axes import checked, knob_named, spread, without_repeats
from sparda_core.whatif.backends import Pool, serial
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.knobs import Knob
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Report

#: Values looked at before bisecting: two crossovers between two neighbours of these would be missed.
SCAN = 13
#: How closely a crossover of a real number is known.
TOLERANCE = 0.01
#: The same beside 0, from which nothing is far in proportion: a share of where the search began.
NEAR_ZERO = 1e-6
#: Speeds closer than this are equal: less than what whole nanoseconds can tell apart in a short step.
EQUAL = 1e-6


class Winner(enum.StrEnum):
    """Who is ahead at one value of the knob."""

    FIRST = "first"
    SECOND = "second"
    EQUAL = "equal"
    ONLY_FIRST = "only first works"
    ONLY_SECOND = "only second works"
    NEITHER = "neither"


@attrs.frozen(kw_only=True)
class Crossing:
    """A change of winner between `low` and `high`, neighbours within the tolerance; `at` is the first that has changed.

    A whole-number knob: low + 1 = high.
    """

    low: float
    high: float
    before: Winner
    after: Winner

    @property
    def at(self) -> float:
        """The least value known to lie beyond the change."""
        return self.high


@attrs.frozen(kw_only=True)
class Crossovers:
    """Who wins from `low` to `high`, and every change found on the way, in order.

    lead    how many times faster the first must be to win
    begins  the winner at `low`
    """

    knob: str
    low: float
    high: float
    lead: float
    begins: Winner
    crossings: tuple[Crossing, ...]

    def told(self, first: str, second: str) -> str:
        """What was found, in words: `first` and `second` say that the first, or the second, is ahead."""
        words = {
            Winner.FIRST: first, Winner.SECOND: second, Winner.EQUAL: "equal", Winner.ONLY_FIRST: f"only {first} works",
            Winner.ONLY_SECOND: f"only {second} works", Winner.NEITHER: "neither works",
        }  # fmt: skip
        if not self.crossings:
            return f"none in range: {words[self.begins]} from {self.low:g} to {self.high:g}"
        return words[self.begins] + "".join(f", from {one.at:.4g} {words[one.after]}" for one in self.crossings)


def crossover(
    a: Scenario, b: Scenario, knob: str, low: float, high: float, *, lead: float = 1.0, scan: int = SCAN,
    tolerance: float = TOLERANCE,
) -> Crossovers:  # fmt: skip
    """Where `a` stops, or starts, beating `b` by the factor `lead` in tokens/s as `knob` goes from low to high.

    Bracketed on `scan` values (by equal factors where low > 0), then bisected until neighbours differ by no more than
    `tolerance` of the value (beside 0: a millionth of the bracket), or by one for a whole-number knob. Where only one
    of the two fits into memory, it wins.
    raises  UnknownNameError, ConfigError: no number to vary, low >= high, or a name or pair that never works
    """
    found = knob_named(knob)
    if not found.numeric:
        raise ConfigError(f"{knob} is not a number, so there is nothing to bisect; compare its values on a grid")
    low, high = checked(found, low), checked(found, high)
    if not low < high:
        raise ConfigError(f"{knob}: low={low} must be < high={high}")
    if scan < 2 or not 0 < tolerance < 1 or not lead > 0:
        raise ConfigError(f"scan={scan} must be >= 2, tolerance={tolerance} between 0 and 1, lead={lead} > 0")
    judge = _Judge(a, b, found, lead)
    values = without_repeats(spread(low, high, scan, log=low > 0, whole=found.kind is int))
    winners = [judge(value) for value in values]
    if set(winners) == {Winner.NEITHER} and judge.refusal is not None:
        raise judge.refusal
    crossings = [
        _bisect(judge, values[i : i + 2], winners[i : i + 2], tolerance)
        for i in range(len(values) - 1)
        if winners[i] != winners[i + 1]
    ]
    return Crossovers(
        knob=found.name, low=low, high=high, lead=lead, begins=winners[0], crossings=tuple(crossings)
    )


@attrs.frozen(kw_only=True)
class Asked:
    """A question: from where to where along which knob, and how many times faster the first must be to win."""

    knob: str
    low: float
    high: float
    lead: float = 1.0


class _Judge:
    """Says who wins at a value; keeps what it was told, since neighbours are asked for twice."""

    def __init__(self, a: Scenario, b: Scenario, knob: Knob, lead: float) -> None:
        self._a, self._b, self._lead = a, b, lead
        self.knob = knob
        self.refusal: SpardaError | None = None

    def __call__(self, value: float) -> Winner:
        first, second = self._speed(self._a, value), self._speed(self._b, value)
        if first is None or second is None:
            states = {(True, True): Winner.NEITHER, (True, False): Winner.ONLY_SECOND}
            return states.get((first is None, second is None), Winner.ONLY_FIRST)
        ratio = first / (second * self._lead)
        if abs(ratio - 1) <= EQUAL:
            return Winner.EQUAL
        return Winner.FIRST if ratio > 1 else Winner.SECOND

    def _speed(self, scenario: Scenario, value: float) -> float | None:
        """Tokens/s, None where it does not fit or cannot be."""
        try:
            got = scenario.turned(**{self.knob.name: value}).predict()
        except UnknownNameError:
            raise
        except CapacityError:
            return None
        except SpardaError as wrong:
            self.refusal = wrong
            return None
        return got.tokens_per_s if got.feasible else None


def _bisect(judge: _Judge, ends: Sequence[Any], winners: Sequence[Winner], tolerance: float) -> Crossing:
    """Narrow a bracket down to one change; a third winner in the middle is taken as changed."""
    (low, high), (before, after) = ends, winners
    whole = judge.knob.kind is int
    while high - low > (1 if whole else tolerance * high if low else NEAR_ZERO * ends[1]):
        middle = (low + high) // 2 if whole else (low * high) ** 0.5 if low > 0 else (low + high) / 2
        winner = judge(middle)
        if winner == before:
            low = middle
        else:
            high, after = middle, winner
    return Crossing(low=low, high=high, before=before, after=after)


@attrs.frozen(kw_only=True)
class Found:
    """Crossovers in one cell of a grid: axis -> label, and what was found there, or why nothing could be."""

    given: dict[str, Any]
    crossovers: Crossovers | None
    reason: str | None = None


def crossovers_in(
    grid: Grid, first: Mapping[str, Any], second: Mapping[str, Any], ask: Asked, *, pool: Pool = serial,
    report: Report | None = None,
) -> list[Found]:  # fmt: skip
    """Crossovers between two settings of knobs in every cell of a grid that has neither the knob nor those settings.

    raises  as `crossover`; what is wrong with one cell alone becomes its reason
    """
    found = []
    search = functools.partial(_search, grid, dict(first), dict(second), ask)
    for one in pool(search, range(len(grid))):
        found.append(one)
        if report is not None:
            report("crossovers", len(found), len(grid))
    return found


def _search(grid: Grid, first: dict[str, Any], second: dict[str, Any], ask: Asked, point: int) -> Found:
    given = grid.labels(point)
    try:
        here = grid.scenario(point)
        a, b = here.turned(**first), here.turned(**second)
        got = crossover(a, b, ask.knob, ask.low, ask.high, lead=ask.lead)
    except UnknownNameError:
        raise
    except SpardaError as wrong:
        if len(grid) == 1:
            raise
        return Found(given=given, crossovers=None, reason=" ".join(str(wrong).split()))
    return Found(given=given, crossovers=got)
