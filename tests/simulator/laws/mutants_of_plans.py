"""Mutants of what run_step makes of a plan, and of many steps in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from sparda_core.plan import Lane, StepPlan
from sparda_core.simulator import run
from sparda_core.simulator.machine import Cost
from sparda_core.simulator.profile import Price
from sparda_core.spans import Span
from tests.simulator.laws.law import mutant
from tests.simulator.laws.machine import RATES, Machine

Rates = tuple[float, ...]
Capacity = Mapping[str, float]
FLUID = "sparda_core.simulator.fluid"


def stepped(patch: pytest.MonkeyPatch, change: Callable[[StepPlan], StepPlan]) -> None:
    """Run another plan than the one asked for."""
    real = run.Simulator.__init__
    patch.setattr(run.Simulator, "__init__", lambda self, plan, *args, **more: real(self, change(plan), *args, **more))


def _priced(patch: pytest.MonkeyPatch, change: Callable[[Price], Price]) -> None:
    """Charge other prices than the machine's."""
    real = Machine.price
    patch.setattr(Machine, "price", lambda self, op, work, **kwargs: change(real(self, op, work, **kwargs)))


@mutant("waits-forgotten", "an operation waits for the one before it on its lane, and for no other lane")
def _(patch: pytest.MonkeyPatch) -> None:
    stepped(patch, lambda plan: attrs.evolve(plan, ops=[attrs.evolve(op, after=()) for op in plan.ops]))


@mutant("everything-on-one-lane", "copies are issued on the compute stream: an overlap that is none")
def _(patch: pytest.MonkeyPatch) -> None:
    stepped(patch, lambda plan: attrs.evolve(plan, ops=[attrs.evolve(op, lane=Lane.COMPUTE) for op in plan.ops]))


@mutant("one-queue-of-launches", "an operation waits for the one issued before it, whatever its lane")
def _(patch: pytest.MonkeyPatch) -> None:
    def serial(plan: StepPlan) -> StepPlan:
        before = (None, *plan.ops)
        pairs = zip(before, plan.ops, strict=False)
        ops = [attrs.evolve(op, after=(*op.after, first.name)) if first else op for first, op in pairs]
        return attrs.evolve(plan, ops=ops)

    stepped(patch, serial)


@mutant("launch-gaps-forgotten", "the gap between two kernels is nothing")
def _(patch: pytest.MonkeyPatch) -> None:
    _priced(patch, lambda price: attrs.evolve(price, launch_s=0.0))


@mutant("latency-forgotten", "a copy's round trip and the gaps inside an operation are nothing")
def _(patch: pytest.MonkeyPatch) -> None:
    _priced(patch, lambda price: attrs.evolve(price, latency_s=0.0))


@mutant("last-charge-dropped", "of the flows of an operation the last is never started")
def _(patch: pytest.MonkeyPatch) -> None:
    _priced(patch, lambda price: attrs.evolve(price, charges=price.charges[:-1]))


@mutant("charges-one-after-another", "an operation computes first and reads its bytes afterwards")
def _(patch: pytest.MonkeyPatch) -> None:
    def serial(price: Price) -> Price:
        later = sum(charge.size / charge.cap for charge in price.charges[1:] if math.isfinite(charge.cap))
        return attrs.evolve(price, latency_s=price.latency_s + later)

    _priced(patch, serial)


@mutant("everything-twice", "every operation is charged twice")
def _(patch: pytest.MonkeyPatch) -> None:
    def double(price: Price) -> Price:
        charges = tuple(attrs.evolve(charge, size=2 * charge.size) for charge in price.charges)
        return attrs.evolve(price, charges=charges, latency_s=2 * price.latency_s, launch_s=2 * price.launch_s)

    _priced(patch, double)


@mutant("copy-without-work-costs-a-microsecond", "a copy of nothing is launched all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    _priced(patch, lambda price: attrs.evolve(price, launch_s=1e-6) if price.copies and price.nothing else price)


@mutant("late-wake-of-lanes", "a lane goes on 2 ns after what it waited for has ended")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Cost.launches_in_ns
    patch.setattr(Cost, "launches_in_ns", lambda self, waited_ns: real(self, waited_ns) + 2)


@mutant("link-rate-inverted", "a link twice as fast is taken for one half as fast")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Machine.capacity

    def inverted(self: Machine) -> dict[str, float]:
        rates = real(self)
        return {**rates, "h2d": RATES["h2d"] ** 2 / rates["h2d"]}

    patch.setattr(Machine, "capacity", inverted)


def timed(patch: pytest.MonkeyPatch, change: Callable[[Span], Span]) -> None:
    """Change every span of every step."""
    real = run.Step.spans

    def wrong(self: run.Step, shift_ns: int = 0, step: int = 0) -> list[Span]:
        return list(map(change, real(self, shift_ns, step)))

    patch.setattr(run.Step, "spans", wrong)


@mutant("gap-between-steps-lost", "the gap between two steps is counted but does not pass")
def _(patch: pytest.MonkeyPatch) -> None:
    real = run.run_steps

    def wrong(plan: StepPlan, seen: Any, work: Any, machine: Machine, **more: Any) -> run.Run:
        gap_ns = round(machine.step_s * 1e9)
        counted = property(lambda done: tuple(gap_ns + step.long_ns for step in done.steps))
        patch.setattr(run.Run, "step_ns", counted)
        return real(plan, seen, work, attrs.evolve(machine, between_s=0.0), **more)

    patch.setattr(run, "run_steps", wrong)


@mutant("spans-in-whole-microseconds", "spans of several steps are kept in whole microseconds")
def _(patch: pytest.MonkeyPatch) -> None:
    def rough(at_ns: int) -> int:
        return round(at_ns, -3)

    timed(patch, lambda span: attrs.evolve(span, start_ns=rough(span.start_ns), end_ns=rough(span.end_ns)))
