"""Mutants of work, prices, memory and knobs of real plans, and of copies beside compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from sparda_core.facts import StepFacts
from sparda_core.kernels import work_table
from sparda_core.plan import Kind, Op, StepPlan
from sparda_core.simulator import predict, run
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.machine import Cost
from sparda_core.simulator.machine import Machine as EngineMachine
from sparda_core.simulator.memory import shortage
from sparda_core.simulator.profile import Price
from sparda_core.simulator.sms import Seat
from sparda_core.spans import Span
from sparda_core.whatif.scenario import Scenario
from sparda_core.work import Work, WorkContext
from tests.simulator.laws.law import mutant
from tests.simulator.laws.mutants_of_plans import stepped, timed

Rates = tuple[float, ...]
Capacity = Mapping[str, float]
FLUID = "sparda_core.simulator.fluid"


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

    stepped(patch, early)


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


@mutant("layers-taken-alike", "a copy is taken for one of the same bytes in every layer of a step")
def _(patch: pytest.MonkeyPatch) -> None:
    real = work_table.tells_apart

    def wrong(op: Op, facts: StepFacts, context: WorkContext) -> tuple[object, ...] | None:
        return () if op.kind == Kind.FETCH else real(op, facts, context)

    patch.setattr(work_table, "tells_apart", wrong)


@mutant("capacity-ignored", "a point that does not fit is run all the same")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(predict, "shortage", lambda need, profile: None)


@mutant("host-memory-ignored", "only device memory is looked at")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(predict, "shortage", lambda need, profile: shortage(attrs.evolve(need, host=0.0), profile))


@mutant("lane-runs-two-at-once", "an operation begins before the one before it on its lane has ended")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(span: Span) -> Span:
        return attrs.evolve(span, start_ns=max(0, span.start_ns - 2000))

    timed(patch, wrong)
    patch.setattr(predict, "run_steps", run.run_steps)


def hashed_order(patch: pytest.MonkeyPatch) -> None:
    """Spans of several steps in the order of a set of their names; for a process of its own."""
    real = run.Step.spans

    def wrong(self: run.Step, shift_ns: int = 0, step: int = 0) -> list[Span]:
        by_name = {span.name: span for span in real(self, shift_ns, step)}
        return [by_name[name] for name in list(set(by_name))[:-1]]

    patch.setattr(run.Step, "spans", wrong)


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


@mutant("waves-counted-twice", "what copies cost a kernel in waves is charged by its price and by its SMs")
def _(patch: pytest.MonkeyPatch) -> None:
    real = EngineMachine.wave_factor
    patch.setattr(EngineMachine, "wave_factor", lambda self, cost, seat: real(self, cost, seat) ** 2)


@mutant("drag-forgotten", "the bytes that a copy keeps in flight cost nobody anything")
def _(patch: pytest.MonkeyPatch) -> None:
    _gpu_priced(patch, lambda op, work, price: attrs.evolve(price, drag=0.0))


@mutant("drag-counted-twice", "the bytes that a copy keeps in flight are charged twice")
def _(patch: pytest.MonkeyPatch) -> None:
    _gpu_priced(patch, lambda op, work, price: attrs.evolve(price, drag=2 * price.drag))


@mutant("fewer-bytes-are-quicker", "a copy CTA with fewer bytes in flight answers sooner and moves more")
def _(patch: pytest.MonkeyPatch) -> None:
    def wrong(op: Op, work: Work, price: Price) -> Price:
        by = 131072 / (work.in_flight_bytes or 131072)
        return attrs.evolve(price, copy_caps=tuple((a * by, b * by) for a, b in price.copy_caps))

    _gpu_priced(patch, wrong)
