"""The mutants: one named bug each, put into the simulator by patching one function or class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import simpy

from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.simulator import ahead, fluid, link, predict, programs, run, sms
from sparda_core.simulator.engine import Engine
from sparda_core.simulator.fairshare import Demand, fair_rates
from sparda_core.simulator.fluid import NEVER, NS, Flow, Fluid
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.machine import Cost
from sparda_core.simulator.machine import Machine as EngineMachine
from sparda_core.simulator.profile import Grid, Price
from sparda_core.simulator.programs import Program
from sparda_core.simulator.slots import Slots
from sparda_core.simulator.sms import Seat, SmPool
from sparda_core.spans import Span
from sparda_core.whatif.scenario import Scenario
from sparda_core.work import Work
from tests.simulator.laws.law import MUTANTS, mutant
from tests.simulator.laws.machine import RATES, Machine

Rates = tuple[float, ...]
Capacity = Mapping[str, float]
FLUID = "sparda_core.simulator.fluid"


# Rates: what fair_rates answers.


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


@mutant("progress-lost-on-a-change", "a flow forgets what it moved since the last change whenever its rate changes")
def _(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Flow, rate: float, now_ns: int) -> None:
        self.anchor_ns, self.rate = now_ns, rate
        self.due_ns = self.reach_ns(self.size)

    patch.setattr(Flow, "change_rate", forgetful)


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
    def down(self: Flow, size: float) -> int:
        return self.anchor_ns + max(1, math.floor((size - self.moved) / self.rate * NS))

    patch.setattr(Flow, "reach_ns", down)


@mutant("clock-in-float-seconds", "an end is computed from a clock in float seconds")
def _(patch: pytest.MonkeyPatch) -> None:
    def drifting(self: Flow, size: float) -> int:
        return max(self.anchor_ns + 1, math.ceil((self.anchor_ns / NS + (size - self.moved) / self.rate) * NS))

    patch.setattr(Flow, "reach_ns", drifting)


@mutant("ends-below-a-tick-forgotten", "a flow that is due in the instant in which its rate changed is not looked at again")
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
    real = fluid.ceil_ns
    patch.setattr(f"{FLUID}.ceil_ns", lambda seconds: real(seconds) + 5)


# Plans: what run_step makes of them.


def _stepped(patch: pytest.MonkeyPatch, change: Callable[[StepPlan], StepPlan]) -> None:
    """Run another plan than the one asked for."""
    real = run.Simulator.__init__
    patch.setattr(run.Simulator, "__init__", lambda self, plan, *args, **more: real(self, change(plan), *args, **more))


def _priced(patch: pytest.MonkeyPatch, change: Callable[[Price], Price]) -> None:
    """Charge other prices than the machine's."""
    real = Machine.price
    patch.setattr(Machine, "price", lambda self, op, work, **kwargs: change(real(self, op, work, **kwargs)))


@mutant("waits-forgotten", "an operation waits for the one before it on its lane, and for no other lane")
def _(patch: pytest.MonkeyPatch) -> None:
    _stepped(patch, lambda plan: attrs.evolve(plan, ops=[attrs.evolve(op, after=()) for op in plan.ops]))


@mutant("everything-on-one-lane", "copies are issued on the compute stream: an overlap that is none")
def _(patch: pytest.MonkeyPatch) -> None:
    _stepped(patch, lambda plan: attrs.evolve(plan, ops=[attrs.evolve(op, lane=Lane.COMPUTE) for op in plan.ops]))


@mutant("one-queue-of-launches", "an operation waits for the one issued before it, whatever its lane")
def _(patch: pytest.MonkeyPatch) -> None:
    def serial(plan: StepPlan) -> StepPlan:
        before = (None, *plan.ops)
        ops = [attrs.evolve(op, after=(*op.after, b.name)) if b else op for b, op in zip(before, plan.ops, strict=False)]
        return attrs.evolve(plan, ops=ops)

    _stepped(patch, serial)


@mutant("contention-forgotten", "every flow runs as if it were alone")
def _(patch: pytest.MonkeyPatch) -> None:
    def alone(demands: Sequence[Demand], capacity: Capacity) -> Rates:
        return tuple(fair_rates([wanted], capacity)[0] for wanted in demands)

    patch.setattr(f"{FLUID}.fair_rates", alone)


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


def _timed(patch: pytest.MonkeyPatch, change: Callable[[Span], Span]) -> None:
    """Change every span of a run of several steps."""
    real = run.run_steps

    def wrong(*args: Any, **kwargs: Any) -> run.Run:
        done = real(*args, **kwargs)
        return attrs.evolve(done, timeline=attrs.evolve(done.timeline, spans=map(change, done.timeline.spans)))

    patch.setattr(run, "run_steps", wrong)


@mutant("gap-between-steps-lost", "the gap between two steps is counted but does not pass")
def _(patch: pytest.MonkeyPatch) -> None:
    real = run.run_steps

    def wrong(plan: StepPlan, seen: Any, work: Any, machine: Machine, **more: Any) -> run.Run:
        gap_ns = round(machine.step_s * 1e9)
        done = real(plan, seen, work, attrs.evolve(machine, between_s=0.0), **more)
        return attrs.evolve(done, step_ns=tuple(step + gap_ns for step in done.step_ns))

    patch.setattr(run, "run_steps", wrong)


@mutant("spans-in-whole-microseconds", "spans of several steps are kept in whole microseconds")
def _(patch: pytest.MonkeyPatch) -> None:
    def rough(at_ns: int) -> int:
        return round(at_ns, -3)

    _timed(patch, lambda span: attrs.evolve(span, start_ns=rough(span.start_ns), end_ns=rough(span.end_ns)))


# Predictions: work, prices and memory of real plans.


def _reworked(patch: pytest.MonkeyPatch, change: Callable[[Op, StepFacts, Work], Work]) -> None:
    """State other work for the operations of a plan."""
    real = predict.kernel_work

    def wrong(*args: Any) -> run.WorkOfOp:
        own = real(*args)
        return lambda op, facts: change(op, facts, own(op, facts))

    patch.setattr(predict, "kernel_work", wrong)


def _gpu_priced(patch: pytest.MonkeyPatch, change: Callable[[Op, Work, Price], Price]) -> None:
    """Charge other prices than a GPU's."""
    real = GpuProfile.price
    patch.setattr(GpuProfile, "price", lambda self, op, work, **of: change(op, work, real(self, op, work, **of)))


@mutant("copy-of-nothing-pays-its-latency", "a copy without misses waits for its round trip all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, work: Work, price: Price) -> Price:
        empty = op.kind == Kind.FETCH and work.launches and not price.charges
        return attrs.evolve(price, latency_s=50e-6) if empty else price

    _gpu_priced(patch, wrong)


@mutant("every-copy-is-launched", "a copy without work is launched all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, work: Work, price: Price) -> Price:
        return attrs.evolve(price, launch_s=20e-6) if op.kind == Kind.FETCH else price

    _gpu_priced(patch, wrong)


@mutant("prefetch-before-selection", "a prefetch does not wait for the diff that it serves")
def _(patch: pytest.MonkeyPatch) -> None:
    def early(plan: StepPlan) -> StepPlan:
        free = [
            attrs.evolve(op, after=()) if any(name.startswith(Kind.DIFF) for name in op.after) else op
            for op in plan.ops
        ]
        return attrs.evolve(plan, ops=free)

    _stepped(patch, early)


@mutant("entries-of-one-context", "the longer a context, the fewer entries are scored")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, facts: StepFacts, work: Work) -> Work:
        return attrs.evolve(work, hbm_bytes=1e12 / int(facts.lengths.max())) if op.kind == "score" else work

    _reworked(patch, wrong)


@mutant("batch-for-free", "the work of all rows is that of one, shared among them")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, facts: StepFacts, work: Work) -> Work:
        return attrs.evolve(work, flops=work.flops / facts.rows, hbm_bytes=work.hbm_bytes / facts.rows)

    _reworked(patch, wrong)


@mutant("bytes-of-hits", "the hits are moved in place of the misses")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, facts: StepFacts, work: Work) -> Work:
        hits = int(facts.hits[op.layer].sum()) if op.kind == Kind.FETCH else 0
        return attrs.evolve(work, h2d_bytes=hits * 32768.0, pieces=hits) if op.kind == Kind.FETCH and hits else work

    _reworked(patch, wrong)


@mutant("hbm-rate-inverted", "device memory twice as fast is taken for one half as fast")
def _(patch: pytest.MonkeyPatch) -> None:
    real = GpuProfile.capacity
    patch.setattr(GpuProfile, "capacity", lambda self: {**(c := real(self)), "hbm": 4.23e12**2 / c["hbm"]})


@mutant("gpu-link-inverted", "a link half as fast is taken for one twice as fast")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: GpuProfile, bytes_per_s: float) -> GpuProfile:
        return self._scaled(self.link.h2d_bytes_per_s.value / bytes_per_s)

    patch.setattr(GpuProfile, "with_link", wrong)


@mutant("capacity-ignored", "a point that does not fit is run all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(predict, "shortage", lambda need, profile: None)


@mutant("host-memory-ignored", "only device memory is looked at")
def _(patch: pytest.MonkeyPatch) -> None:
    real = predict.shortage
    patch.setattr(predict, "shortage", lambda need, profile: real(attrs.evolve(need, host=0.0), profile))


@mutant("lane-runs-two-at-once", "an operation begins before the one before it on its lane has ended")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(span: Span) -> Span:
        return attrs.evolve(span, start_ns=max(0, span.start_ns - 2000))

    _timed_predictions(patch, wrong)


def _timed_predictions(patch: pytest.MonkeyPatch, change: Callable[[Span], Span]) -> None:
    _timed(patch, change)
    patch.setattr(predict, "run_steps", run.run_steps)


def hashed_order(patch: pytest.MonkeyPatch) -> None:
    """Spans of several steps in the order of a set of their names; for a process of its own."""
    real = run.run_steps

    def wrong(*args: Any, **kwargs: Any) -> run.Run:
        done = real(*args, **kwargs)
        by_name = {span.name: span for span in done.timeline.spans}
        kept = [by_name[name] for name in list(set(by_name))[:-1]]
        return attrs.evolve(done, timeline=attrs.evolve(done.timeline, spans=kept))

    patch.setattr(predict, "run_steps", wrong)


@mutant("order-of-a-set-of-names", "names of operations are kept in a set, and its order tells which comes last")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("SPARDA_LAW_MUTANT", hashed_order.__name__)


def remembered_prices(patch: pytest.MonkeyPatch) -> None:
    """Prices by name of operation and plan; for a process of its own."""
    real, seen = GpuProfile.price, dict[tuple[str, str], Price]()

    def wrong(self: GpuProfile, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        return seen.setdefault((op.name, plan.runtime), real(self, op, work, plan=plan, tokens=tokens))

    patch.setattr(GpuProfile, "price", wrong)


@mutant("prices-remembered-by-name", "what an operation costs is remembered by its name and its runtime alone")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("SPARDA_LAW_MUTANT", remembered_prices.__name__)


def _dropped(patch: pytest.MonkeyPatch, name: str) -> None:
    """Predict a scenario with one knob as if it had not been turned."""
    real, usual = Scenario.predict, getattr(Scenario(), name)
    patch.setattr(Scenario, "predict", lambda self: real(attrs.evolve(self, **{name: usual})))


@mutant("stride-is-dropped", "the knob `stride` is accepted and looked at by nobody")
def _(patch: pytest.MonkeyPatch) -> None:
    _dropped(patch, "stride")


@mutant("batch-is-dropped", "the knob `batch` is accepted and looked at by nobody")
def _(patch: pytest.MonkeyPatch) -> None:
    _dropped(patch, "batch")


# Copies beside compute.


@mutant("only-so-many-ctas", "beyond 8, copy CTAs get into each other's way")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, work: Work, price: Price) -> Price:
        crowded = [min(1.0, 8 / placed) for placed in range(1, len(price.copy_caps) + 1)]
        caps = tuple((a * by, b * by) for (a, b), by in zip(price.copy_caps, crowded, strict=True))
        return attrs.evolve(price, copy_caps=caps)

    _gpu_priced(patch, wrong)


@mutant("waves-help", "a second wave is saved, not added, where copies leave fewer SMs")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: EngineMachine, cost: Cost, seat: Seat) -> float:
        return 1 + max(0, 1 - (seat.waves - cost.waves_alone)) * cost.price.wave_share

    patch.setattr(EngineMachine, "wave_factor", wrong)


@mutant("copies-like-company", "a copy is faster beside compute")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, work: Work, price: Price) -> Price:
        return attrs.evolve(price, copy_caps=tuple((beside, alone) for alone, beside in price.copy_caps))

    _gpu_priced(patch, wrong)


# SM slots, queues, the host, running ahead, several machines.


@mutant("a-copy-cta-holds-no-sm", "copy CTAs are placed without taking an SM from anybody")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sms, "_shifted", lambda free, tpcs, by: free)


@mutant("compute-takes-every-sm", "a compute kernel holds all SMs, those of copies included")
def _(patch: pytest.MonkeyPatch) -> None:
    def greedy(self: SmPool, grid: Grid) -> tuple[Any, Seat]:
        free, seat = self._held.free, self.seat(grid)
        return self._keep(free, (sms.PAIR,) * len(free), compute=seat.waves > 0), seat

    patch.setattr(SmPool, "_take", greedy)


@mutant("three-on-a-tpc", "a TPC that is full takes another copy CTA")
def _(patch: pytest.MonkeyPatch) -> None:
    find = sms._find
    patch.setattr(sms, "_find", lambda left, cluster: find(left, cluster) or (0,) * cluster)


@mutant("lone-copies-share-a-tpc", "lone copy CTAs fill half a TPC before they take another")
def _(patch: pytest.MonkeyPatch) -> None:
    find = sms._find

    def packed(left: list[int], cluster: int) -> tuple[int, ...]:
        half = [tpc for tpc, free in enumerate(left) if free == 1]
        return tuple(half[:1]) if cluster == 1 and half else find(left, cluster)

    patch.setattr(sms, "_find", packed)


@mutant("copies-wait-for-an-idle-lane", "a copy that found no SM is placed when the compute lane has nothing to do")
def _(patch: pytest.MonkeyPatch) -> None:
    place = Slots.place

    def late(self: Slots) -> bool:
        engine = self._engine
        for track in engine.main:
            waits = engine.layout.waits[track.ops[track.head]] if track.head < len(track.ops) else (None,)
            if not any(wait is None or track.ledger.ends[wait] < 0 for wait in waits):
                return False
        return place(self)

    patch.setattr(Slots, "place", late)


@mutant("copies-are-preempted", "a compute kernel that starts takes an SM back from a copy")
def _(patch: pytest.MonkeyPatch) -> None:
    take = SmPool._take

    def wrong(self: SmPool, grid: Grid) -> tuple[Any, Seat]:
        free = list(self._held.free)
        held = [tpc for tpc, left in enumerate(free) if left < sms.PAIR]
        for tpc in held[:1]:
            free[tpc] += 1
        self._held = self._keep(tuple(free), self._held.taken, compute=False)
        return take(self, grid)

    patch.setattr(SmPool, "_take", wrong)


@mutant("waves-forgotten", "a kernel on fewer SMs takes no longer")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineMachine, "wave_factor", lambda self, cost, seat: 1.0)


def _charged(patch: pytest.MonkeyPatch, change: Callable[[Price], Price]) -> None:
    """Make other prices ready for the engine."""
    real = EngineMachine._cost
    patch.setattr(EngineMachine, "_cost", lambda self, price, replica: real(self, change(price), replica))


@mutant("copies-like-company-by-hand", "the rates of a copy alone and beside compute are mixed up")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, copy_caps=tuple((b, a) for a, b in price.copy_caps)))


@mutant("caps-of-one-block", "a copy kernel moves what one of its thread blocks moves")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, copy_caps=price.copy_caps[:1] * len(price.copy_caps)))


@mutant("queue-forgotten", "a copy engine serves all at once")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, queue=""))


@mutant("queue-in-reverse", "a copy engine serves first whoever came last")
def _(patch: pytest.MonkeyPatch) -> None:
    serve = Engine._serve

    def reverse(self: Engine, now_ns: int) -> bool:
        self._queued = [(-ready, -op, track) for ready, op, track in self._queued]
        served = serve(self, now_ns)
        self._queued = [(-ready, -op, track) for ready, op, track in self._queued]
        return served

    patch.setattr(Engine, "_serve", reverse)


@mutant("host-issues-at-once", "the host issues every operation at the start of the step")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, issue_s=0.0))


@mutant("host-never-waits", "the host issues a copy before it knows what to copy")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, host_waits=False))


@mutant("ahead-by-a-tick", "an operation that is run ahead ends a nanosecond early")
def _(patch: pytest.MonkeyPatch) -> None:
    real = ahead.program

    def wrong(engine: Engine, cost: Cost) -> Program | None:
        made = real(engine, cost)
        return made and attrs.evolve(made, span_ns=max(0, made.span_ns - 1))

    patch.setattr(ahead, "program", wrong)


@mutant("ahead-without-looking-beside", "an operation that takes bandwidth from a copy is run ahead all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    real = programs._own_ends
    patch.setattr(programs, "_own_ends", lambda machine, own, beside, steady: real(machine, own, beside, {}))


@mutant("host-memory-of-ones-own", "every machine has all of the host's memory to itself")
def _(patch: pytest.MonkeyPatch) -> None:
    real = EngineMachine.__init__
    patch.setattr(EngineMachine, "__init__", lambda self, profile, replicas=1, split=1: real(self, profile, replicas))
