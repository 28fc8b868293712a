"""Runs a StepPlan in virtual time on a profile's shared resources.

The spans mean what a measured timeline's mean: an operation's span begins when it begins to run, and
the gap of its launch lies before it. Steps follow one another: the next begins when every lane of the
last has ended, as graph replays on one stream do, and sessions that wait for their copy lane.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs

from sparda_core.errors import ConfigError, PlanError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, StepPlan
from sparda_core.simulator.engine import Engine, Observer
from sparda_core.simulator.fluid import ceil_ns
from sparda_core.simulator.layout import layout_of
from sparda_core.simulator.machine import Bill, Cost, Machine
from sparda_core.simulator.profile import Price, Profile
from sparda_core.simulator.track import Ledger
from sparda_core.spans import Span, Timeline
from sparda_core.work import Work

#: Most of anything that an operation may ask for; 1e24 FLOPs or bytes take a GPU many years.
MOST_WORK = 1e24
#: States the work of an operation under the facts of one step.
WorkOfOp = Callable[[Op, StepFacts], Work]


@attrs.frozen(kw_only=True)
class Step:
    """One simulated step from time 0. long_ns is when its last lane ended."""

    long_ns: int
    _plan: StepPlan
    _costs: Sequence[Cost]
    _ledger: Ledger

    @property
    def operations(self) -> int:
        """How many operations it ran, those with nothing to do included."""
        return len(self._plan.ops)

    def spans(self, shift_ns: int = 0, step: int = 0) -> list[Span]:
        """When each operation ran, in plan order; those with nothing to do are left out."""
        ledger = self._ledger
        return [
            Span(
                name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, step=step, start_ns=start + shift_ns,
                end_ns=end + shift_ns, args=_args(cost, flow_ends),
            )
            for op, cost, start, end, flow_ends in zip(
                self._plan.ops, self._costs, ledger.starts, ledger.ends, ledger.flow_ends, strict=True
            )
            if start >= 0
        ]  # fmt: skip


def _args(cost: Cost, flow_ends: tuple[int, ...]) -> dict[str, float]:
    args = {"gap_ns": cost.launch_ns, "launches_ns": ceil_ns(cost.price.launches_s)}
    told: dict[str, float] = dict(args)
    for label, size, end in zip(cost.labels, cost.sizes, flow_ends, strict=True):
        told[f"{label}_ns"] = max(told.get(f"{label}_ns", 0), end)
        told[label] = told.get(label, 0.0) + size
    if cost.price.ctas:
        told["sms"] = cost.price.ctas
    return told


@attrs.frozen(kw_only=True)
class Run:
    """Simulated steps, one after another; equal facts share one Step.

    gap_ns  from the end of a step to the next, and before the first
    """

    label: str
    gap_ns: int
    steps: tuple[Step, ...]

    @property
    def step_ns(self) -> tuple[int, ...]:
        """Each step's time, the gap before it included."""
        return tuple(self.gap_ns + step.long_ns for step in self.steps)

    @functools.cached_property
    def timeline(self) -> Timeline:
        """Spans of all steps; many steps make it long, so figures are taken from `distinct`."""
        spans: list[Span] = []
        now_ns = 0
        for number, step in enumerate(self.steps):
            now_ns += self.gap_ns
            spans += step.spans(now_ns, number)
            now_ns += step.long_ns
        return Timeline(label=self.label, spans=spans)

    @functools.cached_property
    def distinct(self) -> tuple[tuple[Timeline, int, int], ...]:
        """(timeline of a step from time 0, number of its first run, how often it ran) of each step that differs."""
        first: dict[int, int] = {}
        times: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            first.setdefault(id(step), number)
            times[id(step)] = times.get(id(step), 0) + 1
        return tuple(
            (Timeline(label=self.label, spans=self.steps[number].spans()), number, times[key])
            for key, number in first.items()
        )


def simulate(
    plan: StepPlan, facts: StepFacts | Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> Timeline:
    """When each operation runs, in nanoseconds; several facts are several steps in a row.

    Raises ProfileError where the profile has no law for the plan's engine or for an operation, and
    PlanError where the work of an operation is no number.
    """
    return run_steps(plan, [facts] if isinstance(facts, StepFacts) else facts, work_of_op, profile).timeline


def run_steps(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile, *, replicas: int = 1
) -> Run:
    """Like `simulate`, with the time of each step.

    Steps do not overlap, so equal facts give equal steps: each distinct one is simulated once and
    shifted on the integer clock, which changes nothing.
    replicas  this many machines run the step side by side and share what the profile says they share. They
              run in lockstep, so one is simulated, with its part of everything shared.
    """
    if not facts:
        raise ConfigError("facts is empty; simulate at least one step")
    check_replicas(replicas)
    profile.check_engine(plan)
    simulator = Simulator(plan, work_of_op, profile, split=replicas)
    same: dict[int, tuple[object, ...]] = {}
    seen: dict[tuple[object, ...], Step] = {}
    steps: list[Step] = []
    for fact in facts:
        # The same object again needs no second look; `facts` keeps it alive, so its id is its own.
        key = same.get(id(fact))
        if key is None:
            key = same[id(fact)] = _content(fact)
        if key not in seen:
            seen[key] = simulator.step(fact)
        steps.append(seen[key])
    return Run(label=f"predicted on {profile.name}", gap_ns=ceil_ns(profile.step_s), steps=tuple(steps))


def run_step(
    plan: StepPlan, facts: StepFacts, work_of_op: WorkOfOp, profile: Profile, observer: Observer | None = None, *,
    replicas: int = 1, coalesce: bool = True,
) -> tuple[list[Span], int]:  # fmt: skip
    """One step from time 0: its spans, and when its last lane ended (ns).

    observer  sees the rates at every change, and the SMs held where the profile models them (Engine)
    replicas  simulated one by one, sharing what the profile says they share; the spans are the first one's
    coalesce  False: ask the event loop for every event; the result is the same
    """
    simulator = Simulator(plan, work_of_op, profile, replicas=replicas)
    step = simulator.step(facts, observer, coalesce=coalesce)
    return step.spans(), step.long_ns


class Simulator:
    """One plan on one machine, step after step; what steps have in common is worked out once.

    `step` is `prices`, then `ready`, then `run`: with the bills of many steps at hand, `run` is what the
    simulation alone costs.
    replicas, split  as in Machine
    """

    def __init__(
        self, plan: StepPlan, work_of_op: WorkOfOp, profile: Profile, *, replicas: int = 1, split: int = 1
    ) -> None:
        check_replicas(replicas)
        self._plan, self._work_of_op, self._profile = plan, work_of_op, profile
        self._layout = layout_of(plan)
        self._replicas, self._split = replicas, split
        self._machine = Machine(profile, replicas, split)
        self._prices: dict[tuple[str, str, Work, int], Price] = {}

    def step(self, facts: StepFacts, observer: Observer | None = None, *, coalesce: bool = True) -> Step:
        """Simulate one step."""
        return self.run(self.ready(self.prices(facts)), observer, coalesce=coalesce)

    def prices(self, facts: StepFacts) -> list[Price]:
        """Price of each operation under these facts, in plan order; one of equal works of a kind for all of them.

        Raises PlanError where the work of an operation is no number.
        """
        tokens = max(1, facts.rows * facts.new_tokens)
        prices = []
        for op in self._plan.ops:
            work = self._work_of_op(op, facts)
            key = (op.kind, op.lane, work, tokens)
            price = self._prices.get(key)
            if price is None:
                _check_work(op, work)
                price = self._prices[key] = self._profile.price(op, work, plan=self._plan, tokens=tokens)
            prices.append(price)
        return prices

    def ready(self, prices: Sequence[Price]) -> Bill:
        """Prices of the plan's operations, in plan order, as `run` takes them."""
        assert len(prices) == len(self._plan.ops), f"{len(prices)} prices for {len(self._plan.ops)} operations"
        if self._machine.crowded:
            self._machine = Machine(self._profile, self._replicas, self._split)
            self._prices.clear()
        return self._machine.bill(prices)

    def run(
        self, bill: Bill, observer: Observer | None = None, *, coalesce: bool = True, remember: bool = True
    ) -> Step:
        """Simulate one step whose operations cost this; the bill is one of this simulator's own.

        coalesce, remember  as in Engine
        """
        engine = Engine(self._layout, bill, bill.machine, observer, coalesce=coalesce, remember=remember)
        long_ns = engine.run()
        return Step(long_ns=long_ns, plan=self._plan, costs=bill.costs[0], ledger=engine.ledgers[0])


def check_replicas(replicas: int) -> None:
    """Raise ConfigError below one replica."""
    if replicas < 1:
        raise ConfigError(f"replicas={replicas} must be >= 1")


def _content(facts: StepFacts) -> tuple[object, ...]:
    """Equal for equal facts, and for no others."""
    values = (getattr(facts, field.name) for field in attrs.fields(StepFacts))
    return tuple(value if isinstance(value, int) else (value.shape, value.tobytes()) for value in values)


@functools.cache
def _work_fields() -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(Work))


def _check_work(op: Op, work: Work) -> None:
    for name in _work_fields():
        value = getattr(work, name)
        least = 1 if name in ("cluster", "ctas_per_sm") else 0
        if not least <= value <= MOST_WORK:
            raise PlanError(f"work of op {op.name!r}: {name}={value} must be between {least} and {MOST_WORK:g}")
