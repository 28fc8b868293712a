"""Explain: which knobs move a prediction most, and how far each is from another bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.scenario import Scenario

if TYPE_CHECKING:
    from sparda_core.simulator.profile import Profile

KIB = 1024
#: A knob is turned by this factor each way; an integer at least to the next one.
TURN = 1.05
#: Knobs whose next change of bound is looked for, with the values between which it is.
BOUNDED = {
    "link_gb_s": (0.01, 1e4), "batch": (1, 4096), "churn": (1e-4, 1.0), "context": (1, 2**24), "slots": (1, 2**20),
}  # fmt: skip
#: A value at which the bound changes is found to this factor, an integer to the next one.
FINE = 1.01
#: Another bound is looked for at this factor first, then at twice it, four times it, ...
FIRST_LOOK = 1.25


@attrs.frozen(kw_only=True)
class Slope:
    """How much tokens per second gain from a knob: d ln(tokens/s) / d ln(knob), around its value `at`."""

    knob: str
    at: float
    slope: float


@attrs.frozen(kw_only=True)
class Turn:
    """The nearest value of a knob at which something else bounds the step.

    at      its value now
    value   where the bound changes; None where it does not between the limits
    factor  value / at
    bound   what bounds the step there
    why     where there is no value: how far was looked, and why no farther
    """

    knob: str
    at: float
    value: float | None = None
    factor: float | None = None
    bound: str | None = None
    why: str = ""


@attrs.frozen(kw_only=True)
class Explanation:
    """Slopes, steepest first (those of 0 left out), and the nearest change of bound for each main knob."""

    slopes: tuple[Slope, ...]
    turns: tuple[Turn, ...]

    @property
    def steepest(self) -> tuple[Slope, ...]:
        """The three knobs that move tokens per second most."""
        return self.slopes[:3]


def explain(scenario: Scenario) -> Explanation:
    """Slopes and changes of bound around a scenario: about a hundred predictions.

    raises  CapacityError where the scenario itself does not fit, and whatever its prediction raises
    """
    bound = scenario.predict().bound
    at = values_now(scenario)
    found = [slope for name, value in at.items() if (slope := _slope(scenario, name, value)) is not None]
    slopes = sorted((one for one in found if one.slope), key=lambda one: (-abs(one.slope), one.knob))
    turns = tuple(_nearest_turn(scenario, name, at[name], bound) for name in BOUNDED if name in at)
    return Explanation(slopes=tuple(slopes), turns=turns)


def values_now(scenario: Scenario) -> dict[str, float]:
    """Numeric knobs that a prediction can depend on, with their values, the profile's where none is given.

    Left out: how long is simulated, and how a row is cut (which changes what is selected, not only when).
    """
    machine = scenario.machine()
    plan_of = scenario.combination().plan()
    pinned = {
        "batch": scenario.batch, "context": scenario.context, "budget": scenario.budget, "gpus": scenario.gpus,
        "resident_layers": plan_of.resident_layers,
        **dict(_rates(machine)),
    }  # fmt: skip
    offloads = plan_of.resident_layers < scenario.combination().shape.layers
    if not offloads:
        del pinned["resident_layers"]
        return {name: float(value) for name, value in pinned.items() if name != "link_gb_s"}
    if scenario.phase == "decode":
        pinned["churn"] = scenario.churn_share()
        if scenario.locality is not None:
            pinned["slots"] = scenario.slot_count()
    if plan_of.engine == "uva":
        pinned["ctas"] = scenario.ctas
        uva = machine.uva if isinstance(machine, GpuProfile) else None
        pinned["in_flight_kib"] = scenario.in_flight_kib or (uva.in_flight_bytes.value / KIB if uva else 0)
    if scenario.phase == "prefill":
        pinned["chunk"] = scenario.chunk
    return {name: float(value) for name, value in pinned.items() if value > 0}


def _rates(machine: Profile) -> Iterator[tuple[str, float]]:
    capacity = machine.capacity()
    for name, resource, unit in (("link_gb_s", "h2d", 1e9), ("hbm_gb_s", "hbm", 1e9), ("tflop_s", "flops", 1e12)):
        if machine.device != "cpu" and resource in capacity:
            yield name, capacity[resource] / unit


def turned_to(scenario: Scenario, name: str, value: float) -> Scenario:
    """The scenario with a numeric knob at `value`, rounded where it is an integer."""
    whole = Scenario.knobs()[name].kind is int
    return scenario.turned(**{name: round(value) if whole else float(value)})


def _slope(scenario: Scenario, name: str, at: float) -> Slope | None:
    """Central difference; one-sided where one side cannot be predicted, None where neither can."""
    whole = Scenario.knobs()[name].kind is int
    step = max(1.0, round(at * (TURN - 1))) if whole else 0.0
    ends = (at - step, at + step) if whole else (at / TURN, at * TURN)
    points = {x: rate for x in ends if x > 0 and (rate := _rate(scenario, name, x)) is not None}
    if len(points) < 2:
        here = _rate(scenario, name, at)
        points |= {} if here is None else {at: here}
    if len(points) < 2:
        return None
    low, high = min(points), max(points)
    return Slope(knob=name, at=at, slope=math.log(points[high] / points[low]) / math.log(high / low))


def _rate(scenario: Scenario, name: str, value: float) -> float | None:
    try:
        return turned_to(scenario, name, value).predict().tokens_per_s
    except (CapacityError, ConfigError):
        return None


@attrs.define
class _Bounds:
    """The bound at values of one knob: None where a prediction is refused or memory is short, `why` says which."""

    scenario: Scenario
    name: str
    why: dict[float, str] = attrs.field(factory=dict)
    _seen: dict[float, str | None] = attrs.field(factory=dict)

    @property
    def whole(self) -> bool:
        return Scenario.knobs()[self.name].kind is int

    def at(self, value: float) -> str | None:
        if value not in self._seen:
            self._seen[value] = None
            try:
                self._seen[value] = turned_to(self.scenario, self.name, value).predict().bound
            except CapacityError:
                self.why[value] = "memory is short"
            except ConfigError:
                self.why[value] = "it is refused"
        return self._seen[value]


def _nearest_turn(scenario: Scenario, name: str, at: float, bound: str) -> Turn:
    """Looks at growing factors both ways, then bisects; a change and its undoing between two looks stay unseen."""
    bounds = _Bounds(scenario, name)
    found, why = [], []
    for limit in reversed(BOUNDED[name]):
        value, reason = _turn(bounds, at, limit, bound)
        if value is None:
            why.append(reason)
        else:
            found.append(value)
    if not found:
        return Turn(knob=name, at=at, why=f"{bound} up to {why[0]} and down to {why[1]}")
    value = min(found, key=lambda one: abs(math.log(one / at)))
    return Turn(knob=name, at=at, value=value, factor=value / at, bound=bounds.at(value))


def _turn(bounds: _Bounds, at: float, limit: float, bound: str) -> tuple[float | None, str]:
    """The first value towards `limit` with another bound; else None, and how far there is none."""
    same, factor = at, FIRST_LOOK
    while True:
        value = min(at * factor, limit) if limit > at else max(at / factor, limit)
        if bounds.whole:
            value = float(math.ceil(value) if limit > at else math.floor(value))
        if value == same or (limit > at) != (value > same):
            return None, f"{same:.4g}"
        there = bounds.at(value)
        if there is None:
            # The last value that has a prediction may have another bound already.
            edge, refused = _bisect(lambda x: bounds.at(x) is not None, same, value, whole=bounds.whole)
            if bounds.at(edge) == bound:
                return None, f"{edge:.4g} ({bounds.why[refused]} beyond)"
            value = edge
        if bounds.at(value) != bound:
            return _bisect(lambda x: bounds.at(x) == bound, same, value, whole=bounds.whole)[1], ""
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
