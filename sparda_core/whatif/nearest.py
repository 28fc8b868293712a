"""The nearest value of a numeric knob at which some answer becomes another one, by looking outward and bisecting."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.whatif.reading import readable
from sparda_core.whatif.scenario import Scenario

#: Knobs that are worth asking, with the values between which one looks.
LIMITS = {
    "link_gb_s": (0.01, 1e4), "batch": (1, 4096), "churn": (1e-4, 1.0), "context": (1, 2**24), "slots": (1, 2**20),
}  # fmt: skip
#: A value is found to this factor, an integer to the next one.
FINE = 1.01
#: Where one looks first: at this factor, then at twice it, four times it, ...
FIRST_LOOK = 1.25


@attrs.frozen(kw_only=True)
class Turn:
    """The nearest value of a knob that changes an answer.

    at      its value now
    value   where the answer becomes another; None where it does not
    factor  value / at
    then    the other answer
    why     where there is no value: how far was looked both ways, and why no farther
    """

    knob: str
    at: float
    value: float | None = None
    factor: float | None = None
    then: str | None = None
    why: str = ""


@attrs.define
class _Answers:
    """The answer at values of one knob: None where it is refused or memory is short; `why` says which."""

    answer: Callable[[float], str]
    whole: bool
    why: dict[float, str] = attrs.field(factory=dict)
    _seen: dict[float, str | None] = attrs.field(factory=dict)

    def at(self, value: float) -> str | None:
        if value not in self._seen:
            self._seen[value] = None
            try:
                self._seen[value] = self.answer(value)
            except CapacityError:
                self.why[value] = "memory is short"
            except ConfigError:
                self.why[value] = "it is refused"
        return self._seen[value]


def nearest_turn(
    knob: str, at: float, now: str, answer: Callable[[float], str], *, most: float = math.inf
) -> Turn:
    """The nearest change of `answer`, which is `now` at `at`.

    Looks at growing factors both ways, then bisects: a change and its undoing between two looks stay unseen.
    answer  may raise CapacityError or ConfigError: there is nothing beyond, then
    most    no value above this is of interest
    """
    answers = _Answers(answer, whole=Scenario.knobs()[knob].kind is int)
    found, why = [], []
    low, high = LIMITS[knob]
    for limit in (max(at, min(high, most)), min(at, low)):
        value, reason = _turn(answers, at, limit, now)
        if value is None:
            why.append(reason)
        else:
            found.append(value)
    if not found:
        return Turn(knob=knob, at=at, why=f"{now} up to {why[0]} and down to {why[1]}")
    value = min(found, key=lambda one: abs(math.log(one / at)))
    return Turn(knob=knob, at=at, value=value, factor=value / at, then=answers.at(value))


def _turn(answers: _Answers, at: float, limit: float, now: str) -> tuple[float | None, str]:
    """The first value towards `limit` with another answer; else None, and how far there is none."""
    same, factor = at, FIRST_LOOK
    while True:
        if limit == same:
            return None, readable(same)
        value = min(at * factor, limit) if limit > at else max(at / factor, limit)
        if answers.whole:
            value = float(math.ceil(value) if limit > at else math.floor(value))
        if value == same:
            return None, readable(same)
        there = answers.at(value)
        if there is None:
            # The last value that has an answer may have another one already.
            value, refused = _bisect(lambda x: answers.at(x) is not None, same, value, whole=answers.whole)
            if value == same or answers.at(value) == now:
                return None, f"{readable(value)} ({answers.why[refused]} beyond)"
        if answers.at(value) != now:
            return _bisect(lambda x: answers.at(x) == now, same, value, whole=answers.whole)[1], ""
        same, factor = value, 2 * factor


def _bisect(holds: Callable[[float], bool], yes: float, no: float, *, whole: bool) -> tuple[float, float]:
    """Between a value where `holds` and one where it does not: two such values next to each other."""
    while (abs(no - yes) > 1) if whole else (max(no, yes) / min(no, yes) > FINE):
        middle = math.sqrt(yes * no)
        if whole:
            middle = float(min(max(round(middle), min(yes, no) + 1), max(yes, no) - 1))
        if holds(middle):
            yes = middle
        else:
            no = middle
    return yes, no
