"""Runs a StepPlan in virtual time: one SimPy process a lane, on a profile's shared resources.

The spans mean what a measured timeline's mean: an operation's span begins when it begins to run, and
the gap of its launch lies before it. Steps follow one another: the next begins when every lane of the
last has ended, as graph replays on one stream do, and sessions that wait for their copy lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence

import attrs
import simpy

from sparda_core.errors import ConfigError, PlanError
from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator.link import Flow, SharedResources, ceil_ns
from sparda_core.simulator.profile import Price, Profile
from sparda_core.spans import Span, Timeline
from sparda_core.work import Work

#: States the work of an operation under the facts of one step.
WorkOfOp = Callable[[Op, StepFacts], Work]
Events = Generator[simpy.Event, None, None]
Observer = Callable[[int, dict[str, float]], None]


@attrs.frozen(kw_only=True)
class Run:
    """Simulated steps. step_ns holds each step's time, the gap before it included."""

    timeline: Timeline
    step_ns: tuple[int, ...]


def simulate(
    plan: StepPlan, facts: StepFacts | Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> Timeline:
    """When each operation runs, in nanoseconds; several facts are several steps in a row.

    Raises ProfileError where the profile has no law for the plan's engine or for an operation, and
    PlanError where the work of an operation is no number.
    """
    return run_steps(plan, [facts] if isinstance(facts, StepFacts) else facts, work_of_op, profile).timeline


def run_steps(plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile) -> Run:
    """Like `simulate`, with the time of each step.

    Steps do not overlap, so equal facts give equal steps: each distinct one is simulated once and
    shifted on the integer clock, which changes nothing.
    """
    if not facts:
        raise ConfigError("facts is empty; simulate at least one step")
    profile.check_engine(plan)
    gap_ns = ceil_ns(profile.step_s)
    seen: dict[int, tuple[list[Span], int]] = {}
    spans: list[Span] = []
    step_ns: list[int] = []
    now_ns = 0
    for step, fact in enumerate(facts):
        if id(fact) not in seen:
            seen[id(fact)] = run_step(plan, fact, work_of_op, profile)
        once, long_ns = seen[id(fact)]
        now_ns += gap_ns
        spans += (attrs.evolve(s, start_ns=s.start_ns + now_ns, end_ns=s.end_ns + now_ns, step=step) for s in once)
        now_ns += long_ns
        step_ns.append(gap_ns + long_ns)
    return Run(timeline=Timeline(label=f"predicted on {profile.name}", spans=spans), step_ns=tuple(step_ns))


def run_step(
    plan: StepPlan, facts: StepFacts, work_of_op: WorkOfOp, profile: Profile, observer: Observer | None = None
) -> tuple[list[Span], int]:
    """One step from time 0: its spans, and when its last lane ended (ns).

    observer  sees the rates at every change, as SharedResources tells them
    """
    tokens = max(1, facts.rows * facts.new_tokens)
    prices = {}
    for op in plan.ops:
        work = work_of_op(op, facts)
        _check_work(op, work)
        prices[op.name] = profile.price(op, work, plan=plan, tokens=tokens)
    return _Step(plan, prices, profile, observer).run()


def _check_work(op: Op, work: Work) -> None:
    for field in attrs.fields(Work):
        value = getattr(work, field.name)
        if not (math.isfinite(value) and value >= 0):
            raise PlanError(f"work of op {op.name!r}: {field.name}={value} must be finite and >= 0")


class _Step:
    """One step under way."""

    def __init__(
        self, plan: StepPlan, prices: Mapping[str, Price], profile: Profile, observer: Observer | None
    ) -> None:
        self._plan, self._prices, self._profile = plan, prices, profile
        self._env = simpy.Environment()
        self._shared = SharedResources(self._env, profile.capacity(), observer)
        self._ended = {op.name: self._env.event() for op in plan.ops}
        # What runs now, in the order it started: (its price, its flows).
        self._running: dict[str, tuple[Price, list[Flow]]] = {}
        self._spans: list[Span] = []
        self._issued_ns: dict[str, int] = {}
        issued_s = 0.0
        for op in plan.ops:
            issued_s += prices[op.name].issue_s
            self._issued_ns[op.name] = ceil_ns(issued_s)

    def run(self) -> tuple[list[Span], int]:
        lanes = [self._env.process(self._lane(self._plan.lane(lane))) for lane in Lane if self._plan.lane(lane)]
        # Stops with the last lane: a wake-up that is still armed must not prolong the step.
        self._env.run(until=self._env.all_of(lanes))
        return self._spans, int(self._env.now)

    def _lane(self, ops: Sequence[Op]) -> Events:
        for op in ops:
            free_ns = int(self._env.now)
            for name in op.after:
                yield self._ended[name]
            price = self._prices[op.name]
            waited_ns = int(self._env.now) - free_ns
            yield from self._pass(self._issued_ns[op.name] - int(self._env.now))
            yield from self._pass(_launch_ns(price, waited_ns))
            if not price.nothing or not price.copies:
                yield from self._operation(op, price)
            self._ended[op.name].succeed()

    def _pass(self, delay_ns: int) -> Events:
        if delay_ns > 0:
            yield self._env.timeout(delay_ns)

    def _operation(self, op: Op, price: Price) -> Events:
        start_ns = int(self._env.now)
        flows: list[Flow] = []
        if price.charges:
            # Held from the start: a copy kernel takes its SMs before its first byte moves.
            self._running[op.name] = price, flows
            self._contend()
        yield from self._pass(ceil_ns(price.latency_s))
        flow_start_ns = int(self._env.now)
        if price.charges:
            flows += (self._shared.start(charge.size, charge.uses, charge.cap) for charge in price.charges)
            self._contend()
            for flow in flows:
                yield flow.done
            del self._running[op.name]
            self._contend()
        args: dict[str, float] = {"gap_ns": ceil_ns(price.launch_s), "launches_ns": ceil_ns(price.launches_s)}
        for charge, flow in zip(price.charges, flows, strict=True):
            assert flow.end_ns is not None
            args[f"{charge.label}_ns"] = max(args.get(f"{charge.label}_ns", 0), flow.end_ns - flow_start_ns)
            args[charge.label] = args.get(charge.label, 0.0) + charge.size
        if price.ctas:
            args["sms"] = price.ctas
        self._spans.append(_span(op, start_ns, int(self._env.now), args))

    def _contend(self) -> None:
        """Set how much each running operation is slowed by the others."""
        factors: dict[Flow, float] = {}
        for name, (price, flows) in self._running.items():
            others = [other for key, (other, _) in self._running.items() if key != name]
            factor = self._profile.slowdown(price, others) if others else 1.0
            for flow in flows:
                factors[flow] = factor
        self._shared.slow(factors)


def _launch_ns(price: Price, waited_ns: int) -> int:
    launch_ns = ceil_ns(price.launch_s)
    if price.wake_s is None or not waited_ns:
        return launch_ns
    return max(ceil_ns(price.wake_s), launch_ns - waited_ns)


def _span(op: Op, start_ns: int, end_ns: int, args: dict[str, float]) -> Span:
    return Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=start_ns, end_ns=end_ns, args=args)
