"""predict: how long a step takes on a machine, what bounds it, and whether it fits."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

import attrs

from sparda_core import __version__
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.facts import StepFacts
from sparda_core.late import late_blocks
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.selector import Selector
from sparda_core.simulator.bound import BOUNDS, bound_of, shares
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.memory import MemoryNeed, memory_need, shortage
from sparda_core.simulator.observe import observe_steps
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.quantity import Basis
from sparda_core.simulator.run import Run, WorkOfOp, run_steps
from sparda_core.spans import Timeline, exposed_wait_ns
from sparda_core.trace_counters import Usage
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Prediction:
    """One prediction. Where the point does not fit, everything that is a time raises CapacityError.

    need         memory by what it holds
    problem      why it does not fit; None where it does
    tokens       tokens that one step processes, mean over the steps, of all GPUs
    provenance   what the numbers rest on: profile, its digest and priors, runtime, selector, version
    plan, facts  what was predicted: the plan of a step, and the facts of each
    """

    need: MemoryNeed
    problem: CapacityError | None
    tokens: float
    provenance: dict[str, str]
    plan: StepPlan
    facts: tuple[StepFacts, ...]
    _run: Run | None
    _watch: Callable[[], tuple[Usage, ...]] = attrs.field(eq=False, repr=False)

    @property
    def feasible(self) -> bool:
        """Whether it fits into memory."""
        return self.problem is None

    @property
    def timeline(self) -> Timeline:
        """When each operation runs."""
        return self._done.timeline

    @property
    def usage(self) -> tuple[Usage, ...]:
        """What each resource gives over the timeline, for a trace's counters; simulated anew each time."""
        if self.problem is not None:
            raise self.problem
        return self._watch()

    @property
    def step_s(self) -> float:
        """Mean time of a step, the gap before it included."""
        return sum(self._done.step_ns) / self.steps / 1e9

    @property
    def median_step_s(self) -> float:
        """Median time of a step, which is what measurements quote."""
        return statistics.median(self._done.step_ns) / 1e9

    @property
    def steps(self) -> int:
        """Steps predicted; of prefill, chunks."""
        return len(self._done.step_ns)

    @property
    def total_s(self) -> float:
        """Time of all steps together."""
        return sum(self._done.step_ns) / 1e9

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all rows, of all GPUs."""
        return self.tokens / self.step_s

    @property
    def misses(self) -> float:
        """Blocks moved per step, of one GPU: all layers, rows and KV heads."""
        return sum(int(facts.misses.sum()) for facts in self.facts) / self.steps

    @property
    def late_blocks(self) -> float:
        """Misses per step that had not arrived when the compute lane wanted them; see `late_blocks` in late.py."""
        return self._mean(lambda timeline, step: sum(late_blocks(timeline, self.plan, (self.facts[step],))))

    @property
    def exposed_s(self) -> float:
        """Time per step in which the compute lane waited for a transfer; the launch gap of attention included."""
        return self._mean(lambda timeline, _: sum(exposed_wait_ns(timeline, self.plan).values())) / 1e9

    @property
    def transfer_s(self) -> float:
        """Time per step in which the h2d lane was busy."""
        return self._mean(lambda timeline, _: timeline.busy_ns(Lane.H2D)) / 1e9

    @property
    def hidden_s(self) -> float:
        """Transfer per step that ran beside compute."""
        return max(0.0, self.transfer_s - self.exposed_s)

    @property
    def by_kind(self) -> dict[str, float]:
        """Seconds per step by kind of operation, whatever ran beside it; longest first."""
        total_ns: dict[str, int] = {}
        for timeline, _, times in self._done.distinct:
            for span in timeline.spans:
                kind = str(span.kind)
                total_ns[kind] = total_ns.get(kind, 0) + times * (span.end_ns - span.start_ns)
        total = {kind: ns / self.steps / 1e9 for kind, ns in total_ns.items()}
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of a step's critical path by launch, select, hbm, compute, pcie; mean over the steps.

        The gap before a step is a launch, so that they add up to the step.
        """
        each = [(shares(timeline, self.plan), times) for timeline, _, times in self._done.distinct]
        spent = {name: sum(one[name] * times for one, times in each) / self.steps for name in BOUNDS}
        return {**spent, "launch": spent["launch"] + self._done.gap_ns / 1e9}

    @property
    def bound(self) -> str:
        """What most of the critical path is spent for: launch, select, hbm, compute or pcie."""
        return bound_of(self.spent)

    @property
    def _done(self) -> Run:
        if self.problem is not None:
            raise self.problem
        assert self._run is not None
        return self._run

    def _mean(self, of_step: Callable[[Timeline, int], float]) -> float:
        """Mean over the steps of what a step's timeline (from time 0) and number give; equal steps are asked once."""
        each = self._done.distinct
        return sum(of_step(timeline, number) * times for timeline, number, times in each) / self.steps


def predict(
    plan: StepPlan, facts: StepFacts | Sequence[StepFacts], *, context: WorkContext, selector: Selector,
    profile: Profile, steps: int = 1, work_of_op: WorkOfOp | None = None, notes: Mapping[str, str] | None = None,
) -> Prediction:  # fmt: skip
    """Predict a plan under facts on a profile.

    facts       of one step, run `steps` times, or of several steps in a row (then `steps` stays 1)
    work_of_op  states the work of an operation; None: the kernels' and the selector's own work.py
    notes       what else the prediction rests on, for its provenance
    Raises ProfileError where the profile has no law for the plan. A point that does not fit into
    memory is no error here: see Prediction.feasible.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps} must be >= 1")
    if not isinstance(facts, StepFacts) and steps != 1:
        raise ConfigError(f"steps={steps} with facts of {len(facts)} steps; give one of the two")
    every = [facts] * steps if isinstance(facts, StepFacts) else list(facts)
    if not every:
        raise ConfigError("facts is empty; predict at least one step")
    profile.check_engine(plan)
    # What is written through to the host store follows from the plan.
    context = context.under(plan)
    # The fullest step decides whether the run fits.
    fullest = max(every, key=lambda fact: int(fact.lengths.sum()))
    need = memory_need(plan, fullest, context, profile)
    problem = shortage(need, profile)
    work = work_of_op or kernel_work(plan, context, selector)
    gpus = profile.gpus if isinstance(profile, GpuProfile) else 1
    return Prediction(
        need=need, problem=problem, tokens=gpus * sum(f.rows * f.new_tokens for f in every) / len(every),
        provenance=_provenance(plan, context, profile) | _outside(plan, every, work, profile) | dict(notes or {}),
        plan=plan, facts=tuple(every),
        run=None if problem else run_steps(plan, every, work, profile, replicas=gpus),
        watch=functools.partial(_watch, plan, every, context, selector, profile, work_of_op, gpus),
    )  # fmt: skip


def _watch(
    plan: StepPlan, facts: Sequence[StepFacts], context: WorkContext, selector: Selector, profile: Profile,
    work_of_op: WorkOfOp | None, gpus: int,
) -> tuple[Usage, ...]:  # fmt: skip
    work = work_of_op or kernel_work(plan, context, selector)
    return observe_steps(plan, facts, work, profile, replicas=gpus)


def kernel_work(plan: StepPlan, context: WorkContext, selector: Selector) -> WorkOfOp:
    """Work as the kernels' and the selector's work.py state it; a `uva` transfer holds the context's copy_ctas."""
    from sparda_core.kernels.work_table import declared_kinds, tells_apart, work_of

    context = context.under(plan)
    # Layers are much alike: works of the step looked at last, by kind and what tells them apart.
    seen: dict[tuple[object, ...], Work] = {}
    last: StepFacts | None = None
    holds = context.copy_ctas if plan.engine == "uva" else 0
    # A selector may call an operation of its own by a name of the table: what it says of its layers counts.
    own = declared_kinds(selector, plan)

    def work_of_op(op: Op, facts: StepFacts) -> Work:
        nonlocal last
        if facts is not last:
            seen.clear()
            last = facts
        apart = None
        if op.layer < facts.selected.shape[0]:
            apart = selector.tells_apart(op, facts, context) if op.kind in own else tells_apart(op, facts, context)
        key = None if apart is None else (op.kind, op.lane, *apart)
        work = None if key is None else seen.get(key)
        if work is None:
            work = work_of(op, facts, context, selector)
            if work.h2d_bytes and op.lane != Lane.COMPUTE:
                work = attrs.evolve(work, sms=holds)
            if key is not None:
                seen[key] = work
        return work

    return work_of_op


def _provenance(plan: StepPlan, context: WorkContext, profile: Profile) -> dict[str, str]:
    bases = profile.bases()
    counts: Mapping[Basis, int] = {basis: list(bases.values()).count(basis) for basis in Basis}
    told = {
        "profile": profile.name,
        "profile_title": profile.title,
        "profile_date": profile.date,
        "profile_digest": profile.digest,
        "numbers": ", ".join(f"{count} {basis}" for basis, count in counts.items() if count),
        "priors": ", ".join(name for name, basis in bases.items() if basis == Basis.PRIOR),
        "runtime": plan.runtime,
        "selector": plan.selector,
        "engine": plan.engine,
        "shape": context.shape.name,
        "version": __version__,
    }
    if isinstance(profile, GpuProfile):
        told["launches"] = profile.launches_of(plan)
    return told


def _outside(plan: StepPlan, every: Sequence[StepFacts], work: WorkOfOp, profile: Profile) -> dict[str, str]:
    """What lies outside the calibrated domain, for a profile that was told to accept it."""
    if not (isinstance(profile, GpuProfile) and profile.extrapolate):
        return {}
    marks = {
        mark: None
        for facts in {id(facts): facts for facts in every}.values()
        for op in plan.ops
        for mark in profile.outside(op, work(op, facts), plan=plan, tokens=max(1, facts.rows * facts.new_tokens))
    }
    return {"extrapolated": "; ".join(marks)} if marks else {}
