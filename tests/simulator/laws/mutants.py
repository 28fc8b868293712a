"""Mutants of rates and flows: one named bug each, put into the simulator by patching one function or class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import simpy

from sparda_core.simulator import link
from sparda_core.simulator.fairshare import Demand, fair_rates
from sparda_core.simulator.fluid import NEVER, NS, Flow, Fluid, ceil_ns
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


# Time: what SharedResources does with the rates.


@mutant("contention-forgotten", "every flow runs as if it were alone")
def _(patch: pytest.MonkeyPatch) -> None:
    def alone(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(fair_rates([wanted], capacity)[0] for wanted in demands)

    patch.setattr(f"{FLUID}.fair_rates", alone)


def _resolved(patch: pytest.MonkeyPatch, rates: Callable[[Fluid, Mapping[Flow, float]], Mapping[Flow, float]]) -> None:
    """Patch the solve: `rates(fluid, rates before)` gives the rates that hold after it."""
    solve = Fluid.solve

    def wrong(self: Fluid, now_ns: int) -> None:
        before = {flow: flow.rate for flow in self.flows if flow.rate}
        solve(self, now_ns)
        for flow, rate in rates(self, before).items():
            flow.change_rate(rate, now_ns)
        self.due_ns = min((flow.due_ns for flow in self.flows), default=NEVER)

    patch.setattr(Fluid, "solve", wrong)


@mutant("share-fixed-at-start", "a flow keeps the share that it got when it started")
def _(patch: pytest.MonkeyPatch) -> None:
    _resolved(patch, lambda pool, before: before)


@mutant("rates-kept-when-a-flow-ends", "rates are solved when a flow starts, not when one ends")
def _(patch: pytest.MonkeyPatch) -> None:
    _resolved(patch, lambda pool, before: before if len(before) == len(pool.flows) else {})


@mutant("first-come-first-served", "the oldest flow runs alone, the others wait")
def _(patch: pytest.MonkeyPatch) -> None:
    def oldest(pool: Fluid, before: Mapping[Flow, float]) -> dict[Flow, float]:
        if not pool.flows:
            return {}
        first, *rest = pool.flows
        alone = fair_rates([pool.rates.demand(first.kind)], pool.rates.capacity)[0]
        return {first: alone, **dict.fromkeys(rest, alone / 1e9)}

    _resolved(patch, oldest)


@mutant("order-of-starts-weighs", "a flow started first in an instant gets twice the weight")
def _(patch: pytest.MonkeyPatch) -> None:
    def tilted(pool: Fluid, before: Mapping[Flow, float]) -> dict[Flow, float]:
        solved = pool.rates.of(tuple(sorted(flow.kind for flow in pool.flows)))
        return {flow: solved[flow.kind] * (0.5 if i else 1.0) for i, flow in enumerate(pool.flows)}

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


@mutant("served-twice", "what a flow moved before its last change is counted again at its end")
def _(patch: pytest.MonkeyPatch) -> None:
    finish = Fluid.finish

    def twice(self: Fluid, now_ns: int) -> list[Flow]:
        before = {flow: flow.moved for flow in self.flows}
        over = finish(self, now_ns)
        for flow in over:
            flow.moved += before[flow]
        return over

    patch.setattr(Fluid, "finish", twice)


@mutant("wake-up-dropped", "a wake-up that comes too early arms no other")
def _(patch: pytest.MonkeyPatch) -> None:
    def asleep(self: link.Wake, _: simpy.Event) -> None:
        now_ns = self._armed_ns.pop()
        if self.due_ns <= now_ns:
            self.due_ns = NEVER
            self._call(now_ns)

    patch.setattr(link.Wake, "_fire", asleep)


class _Late(simpy.Event):
    """An event that is heard 3 ns after it happened."""

    def succeed(self, value: Any = None) -> simpy.Event:
        self._ok, self._value = True, value
        self.env.schedule(self, delay=3)
        return self


@mutant("end-heard-late", "whoever waits for a flow hears of its end 3 ns late")
def _(patch: pytest.MonkeyPatch) -> None:
    begin = link.SharedFlow.__init__

    def late(self: link.SharedFlow, size: float, kind: int, base: Demand, done: simpy.Event) -> None:
        begin(self, size, kind, base, _Late(done.env))

    patch.setattr(link.SharedFlow, "__init__", late)


@mutant("completion-rounded-down", "an end is rounded down to a whole nanosecond")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: now_ns + math.floor(left_s * NS))


@mutant("clock-in-float-seconds", "an end is computed from a clock in float seconds")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: math.ceil((now_ns / NS + left_s) * NS))


@mutant("ends-below-a-tick-forgotten", "a flow due in the instant in which its rate changed is never looked at again")
def _(patch: pytest.MonkeyPatch) -> None:
    finish = Fluid.finish

    def blind(self: Fluid, now_ns: int) -> list[Flow]:
        hidden = [flow for flow in self.flows if flow.due_ns <= flow.anchor_ns == now_ns]
        self.flows = [flow for flow in self.flows if flow not in hidden]
        over = finish(self, now_ns)
        self.flows += hidden
        for flow in hidden:
            flow.due_ns = NEVER
        return over

    patch.setattr(Fluid, "finish", blind)


@mutant("five-ns-a-flow", "every flow takes 5 ns more, whatever the machine")
def _(patch: pytest.MonkeyPatch) -> None:
    _rerated(patch, lambda now_ns, left_s: _exact(now_ns, left_s) + 5)
