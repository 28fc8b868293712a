"""Mutants of rates and flows: one named bug each, put into the simulator by patching one function or class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from sparda_core.simulator.engine import Engine
from sparda_core.simulator.fairshare import Demand, fair_rates
from sparda_core.simulator.fluid import NEVER, NS, Flow, ceil_ns
from sparda_core.simulator.lanes import Lanes
from sparda_core.simulator.track import Track
from tests.simulator.laws.law import mutant

Rates = tuple[float, ...]
Capacity = Mapping[str, float]
FLUID = "sparda_core.simulator.fluid"


@mutant("caps-forgotten", "a flow alone takes the whole resource, whatever its cap")
def _(patch: pytest.MonkeyPatch) -> None:
    def uncapped(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return fair_rates([Demand(d.uses) if d.uses else d for d in demands], capacity)

    patch.setattr(f"{FLUID}.fair_rates", uncapped)


@mutant("equal-split-whatever-the-caps", "what a capped flow leaves over goes to nobody")
def _(patch: pytest.MonkeyPatch) -> None:
    def split(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        even = fair_rates([Demand(d.uses) if d.uses else d for d in demands], capacity)
        return tuple(min(rate, d.cap) for rate, d in zip(even, demands, strict=True))

    patch.setattr(f"{FLUID}.fair_rates", split)


@mutant("a-tenth-lost-to-each-companion", "sharing costs: every further flow takes a tenth of the capacity away")
def _(patch: pytest.MonkeyPatch) -> None:
    def lossy(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(rate * 0.9 ** (len(demands) - 1) for rate in fair_rates(demands, capacity))

    patch.setattr(f"{FLUID}.fair_rates", lossy)


@mutant("rates-in-32-bits", "a rate is kept in 32 bits: none exceeds 2 147 483 647 units a second")
def _(patch: pytest.MonkeyPatch) -> None:
    def narrow(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(min(rate, 2.0**31 - 1) for rate in fair_rates(demands, capacity))

    patch.setattr(f"{FLUID}.fair_rates", narrow)


@mutant("rates-by-order", "the first of two equal flows gets a little more")
def _(patch: pytest.MonkeyPatch) -> None:
    def tilted(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(rate * (1 - 0.01 * i) for i, rate in enumerate(fair_rates(demands, capacity)))

    patch.setattr(f"{FLUID}.fair_rates", tilted)


# Time: what the engine does with the rates.


@mutant("contention-forgotten", "every flow runs as if it were alone")
def _(patch: pytest.MonkeyPatch) -> None:
    def alone(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(fair_rates([wanted], capacity)[0] for wanted in demands)

    patch.setattr(f"{FLUID}.fair_rates", alone)


def _live(engine: Engine) -> list[Flow]:
    """Flows under way, in the order in which their operations began."""
    return [flow for track in engine.running for flow in track.live]


def _resolved(
    patch: pytest.MonkeyPatch, rates: Callable[[Engine, Mapping[Flow, float]], Mapping[Flow, float]]
) -> None:
    """Patch the solve: `rates(engine, rates before)` gives the rates that hold after it."""
    solve = Engine.solve

    def wrong(self: Engine, now_ns: int) -> None:
        before = {flow: flow.rate for flow in _live(self) if flow.rate}
        solve(self, now_ns)
        for flow, rate in rates(self, before).items():
            flow.change_rate(rate, now_ns)
        for track in self.running:
            if track.live:
                track.due_ns = min(flow.due_ns for flow in track.live)

    patch.setattr(Engine, "solve", wrong)


@mutant("share-fixed-at-start", "a flow keeps the share that it got when it started")
def _(patch: pytest.MonkeyPatch) -> None:
    _resolved(patch, lambda engine, before: before)


@mutant("rates-kept-when-a-flow-ends", "rates are solved when a flow starts, not when one ends")
def _(patch: pytest.MonkeyPatch) -> None:
    _resolved(patch, lambda engine, before: before if len(before) == len(_live(engine)) else {})


@mutant("first-come-first-served", "the oldest flow runs alone, the others wait")
def _(patch: pytest.MonkeyPatch) -> None:
    def oldest(engine: Engine, before: Mapping[Flow, float]) -> dict[Flow, float]:
        if not _live(engine):
            return {}
        track, (first, *rest) = next(track for track in engine.running if track.live), _live(engine)
        alone = fair_rates([track.cost.demands[first.kind]], engine.machine.rates.capacity)[0]
        return {first: alone, **dict.fromkeys(rest, alone / 1e9)}

    _resolved(patch, oldest)


@mutant("order-of-starts-weighs", "a flow started first in an instant gets twice the weight")
def _(patch: pytest.MonkeyPatch) -> None:
    def tilted(engine: Engine, before: Mapping[Flow, float]) -> dict[Flow, float]:
        solved = [rate for rates in engine.machine.solve(engine.situation) for rate in rates]
        return {flow: solved[i] * (0.5 if i else 1.0) for i, flow in enumerate(_live(engine))}

    _resolved(patch, tilted)


def _rerated(
    patch: pytest.MonkeyPatch, due_ns: Callable[[int, float], int], moved: Callable[[Flow, int], float] = Flow.moved_at
) -> None:
    """Patch the change of a rate: `due_ns(now, seconds that are left)`, and what had moved until now."""

    def wrong(self: Flow, rate: float, now_ns: int) -> None:
        self.moved = moved(self, now_ns)
        self.anchor_ns, self.rate = now_ns, rate
        self.due_ns = max(now_ns, due_ns(now_ns, (self.size - self.moved) / rate))

    patch.setattr(Flow, "change_rate", wrong)


def _exact(now_ns: int, left_s: float) -> int:
    return now_ns + ceil_ns(left_s)


@mutant("progress-lost-on-a-change", "a flow forgets what it moved since the last change whenever its rate changes")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, _exact, lambda flow, now_ns: flow.moved)


@mutant("end-heard-late", "the end of an operation is told 3 ns late")
def _(patch: pytest.MonkeyPatch) -> None:
    close = Lanes._close
    patch.setattr(Lanes, "_close", lambda self, track, now_ns: close(self, track, now_ns + 3))


@mutant("completion-rounded-down", "an end is rounded down to a whole nanosecond")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: now_ns + math.floor(left_s * NS))


@mutant("clock-in-float-seconds", "an end is computed from a clock in float seconds")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: math.ceil((now_ns / NS + left_s) * NS))


@mutant("ends-below-a-tick-forgotten", "a flow due in the instant in which its rate changed is never looked at again")
def _(patch: pytest.MonkeyPatch) -> None:
    end = Track.end_flows

    def blind(self: Track, now_ns: int) -> None:
        for flow in self.live:
            if flow.due_ns <= flow.anchor_ns == now_ns:
                flow.due_ns = NEVER
        end(self, now_ns)

    patch.setattr(Track, "end_flows", blind)


@mutant("five-ns-a-flow", "every flow takes 5 ns more, whatever the machine")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: _exact(now_ns, left_s) + 5)
