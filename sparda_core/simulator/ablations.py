"""The simulator with a part of it taken out: what each part is worth is how much worse a prediction is without it.

All take the same plan, facts, work and profile as the full model, so that they differ in nothing else:

* `no contention`: plan order, waits, launches and latencies as they are, but every operation as fast as alone.
* `share fixed at start`: an operation keeps the rates that it got when its flows began, whatever starts or ends
  beside it later; SMs change hands as ever.
* `max(copy, compute)`: the longer of what each lane takes alone; where a plan lets nothing run beside a transfer,
  their sum, since no one would expect an overlap there. No less than the host takes to issue a step's operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator.alone import alone_rate, alone_s, overlaps
from sparda_core.simulator.engine import Engine, Observer
from sparda_core.simulator.fluid import ceil_ns
from sparda_core.simulator.machine import Bill
from sparda_core.simulator.profile import Price, Profile
from sparda_core.simulator.run import Run, Simulator, Step, WorkOfOp, run_steps
from sparda_core.work import Work


def without_contention(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> Run:  # fmt: skip
    """Steps in which no operation slows another: resources without end, and no SM is ever taken."""
    return run_steps(plan, facts, work_of_op, cast("Profile", _Boundless(profile)))


def fixed_at_start(plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile) -> Run:
    """Steps in which shares are settled when an operation starts, and never again."""
    if not facts:
        raise ConfigError("facts is empty; simulate at least one step")
    profile.check_engine(plan)
    simulator = _FixedSimulator(plan, work_of_op, profile)
    known: dict[int, Step] = {}
    steps = []
    for fact in facts:
        if id(fact) not in known:
            known[id(fact)] = simulator.step(fact)
        steps.append(known[id(fact)])
    return Run(label=f"shares fixed, {profile.name}", gap_ns=ceil_ns(profile.step_s), steps=tuple(steps))


def longer_lane_s(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> float:  # fmt: skip
    """Mean seconds of a step that takes as long as its longer lane alone, or as both together without overlap."""
    simulator, capacity = Simulator(plan, work_of_op, profile), profile.capacity()
    together = max if overlaps(plan) else math.fsum
    total_s = 0.0
    for fact in facts:
        prices = simulator.prices(fact)
        lanes = lanes_alone_s(plan, prices, capacity)
        issue_s = math.fsum(price.issue_s + price.then_s for price in prices if not price.host_waits)
        total_s += profile.step_s + max(together(lanes.values()), issue_s)
    return total_s / len(facts)


def lanes_alone_s(
    plan: StepPlan, prices: Sequence[Price], capacity: Mapping[str, float]
) -> dict[Lane, float]:  # fmt: skip
    """Seconds of each lane's operations with the machine to themselves."""
    lanes: dict[Lane, float] = {}
    for op, price in zip(plan.ops, prices, strict=True):
        lanes[op.lane] = lanes.get(op.lane, 0.0) + alone_s(price, capacity)
    return lanes


class _Boundless:
    """The profile with every flow at the rate that it has alone, and nothing that could run short."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._own = profile, profile.capacity()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._profile, name)

    sms = 0

    def capacity(self) -> dict[str, float]:
        return dict.fromkeys(self._own, math.inf)

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        price = self._profile.price(op, work, plan=plan, tokens=tokens)
        charges = tuple(attrs.evolve(one, cap=alone_rate(one, self._own)) for one in price.charges)
        return attrs.evolve(price, charges=charges)

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        return 1.0


class _FixedSimulator(Simulator):
    """Runs steps on an engine that never looks back; every event is simulated."""

    def run(
        self, bill: Bill, observer: Observer | None = None, *, coalesce: bool = True, remember: bool = True
    ) -> Step:
        engine = _FixedEngine(self._layout, bill, bill.machine, observer, coalesce=False, remember=False)
        long_ns = engine.run()
        return Step(long_ns=long_ns, plan=self._plan, costs=bill.costs[0], ledger=engine.ledgers[0])


class _FixedEngine(Engine):
    """Flows keep the rates of the instant in which they began."""

    def solve(self, now_ns: int) -> None:
        if self.at_work is not None:
            self._look_who_works()
        if not self.stale:
            return
        self.stale = False
        situation = self.look()
        solution = self.machine.solve(situation) if situation else ()
        for track, rates in zip(self.running, solution, strict=True):
            if track.live:
                kept = tuple(flow.rate or rate for flow, rate in zip(track.live, rates, strict=True))
                track.set_rates(kept, now_ns)
        if self.slots.restless:
            self.slots.arm(now_ns)
