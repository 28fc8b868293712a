"""Explain: which knobs move a prediction most, and how far each is from another bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.policy import SCORE
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.whatif.nearest import LIMITS, Turn, nearest_turn
from sparda_core.whatif.scenario import Scenario

if TYPE_CHECKING:
    from sparda_core.simulator.profile import Profile

KIB = 1024
#: A knob is turned by this factor each way; an integer at least to the next one.
TURN = 1.05


@attrs.frozen(kw_only=True)
class Slope:
    """How much tokens per second gain from a knob: d ln(tokens/s) / d ln(knob), around its value `at`."""

    knob: str
    at: float
    slope: float


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
    return Explanation(slopes=slopes_of(scenario), turns=turns_of(scenario))


def slopes_of(scenario: Scenario) -> tuple[Slope, ...]:
    """Slopes of every numeric knob that has one, steepest first."""
    found = [slope for name, at in values_now(scenario).items() if (slope := _slope(scenario, name, at)) is not None]
    return tuple(sorted((one for one in found if one.slope), key=lambda one: (-abs(one.slope), one.knob)))


def turns_of(scenario: Scenario) -> tuple[Turn, ...]:
    """The nearest change of bound for each main knob; raises CapacityError where the scenario does not fit."""
    bound, at = scenario.predict().bound, values_now(scenario)
    # More slots than a row has blocks keep nothing more.
    most = {"slots": float(scenario.spec().block_count(scenario.context))}
    return tuple(
        nearest_turn(name, at[name], bound, _bound(scenario, name), most=most.get(name, math.inf))
        for name in LIMITS
        if name in at
    )


def values_now(scenario: Scenario) -> dict[str, float]:
    """Numeric knobs that a prediction can depend on, with their values, the profile's where none is given.

    Left out: how long is simulated, and how a row is cut (which changes what is selected, not only when).
    """
    machine = scenario.machine()
    plan = scenario.combination().plan()
    pinned = {
        "batch": scenario.batch, "context": scenario.context, "budget": scenario.budget,
        "resident_layers": plan.resident_layers,
        **dict(_rates(machine)),
    }  # fmt: skip
    if scenario.gpus > 1:
        # Another GPU beside a single one is another row of tokens, whatever bounds the step: that explains nothing.
        pinned["gpus"] = scenario.gpus
    offloads = plan.resident_layers < scenario.combination().shape.layers
    if not offloads:
        del pinned["resident_layers"]
        return {name: float(value) for name, value in pinned.items() if name != "link_gb_s"}
    if scenario.phase == "decode":
        if scenario.recording is None:
            pinned["churn"] = scenario.churn_share()
        if scenario.locality is not None or (scenario.recording is not None and scenario.policy != SCORE):
            pinned["slots"] = scenario.slot_count()
    if plan.engine == "uva":
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


def _bound(scenario: Scenario, name: str) -> Callable[[float], str]:
    return lambda value: turned_to(scenario, name, value).predict().bound
