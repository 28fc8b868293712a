"""What each resource gives while simulated steps run: the counters of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import StepPlan
from sparda_core.simulator.fluid import ceil_ns
from sparda_core.simulator.meters import bytes_of, metered
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import Simulator, WorkOfOp
from sparda_core.trace_counters import Usage, settled
from sparda_core.trace_source import Origin, TraceSource

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction

#: What was taken of each resource from a time on, ns from the start of a step.
_Told = list[tuple[int, dict[str, float]]]


def traced(got: Prediction, *, label: str | None = None) -> TraceSource:
    """A prediction as a source of a trace, with counters and what it rests on; `label` replaces the timeline's own.

    Raises CapacityError where the point does not fit.
    """
    timeline = got.timeline if label is None else attrs.evolve(got.timeline, label=label)
    notes = {"step_s": got.step_s, "provenance": got.provenance}
    return TraceSource(timeline=timeline, plan=got.plan, origin=Origin.PREDICTED, usage=got.usage, notes=notes)


def observe_steps(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile, *, replicas: int = 1
) -> tuple[Usage, ...]:
    """Usage of every resource over the steps that `run_steps` runs, on the same clock; of one replica.

    Each distinct step is simulated once more, with somebody watching. Device memory and the link's two
    directions are told in bytes that were moved, whatever they cost (meters.py).
    """
    simulator = Simulator(plan, work_of_op, metered(profile), split=replicas)
    gap_ns = ceil_ns(profile.step_s)
    seen: dict[int, tuple[_Told, int]] = {}
    usage: list[Usage] = []
    now_ns = 0
    for step, fact in enumerate(facts):
        if id(fact) not in seen:
            seen[id(fact)] = _watch(simulator, fact)
        once, long_ns = seen[id(fact)]
        now_ns += gap_ns
        usage += (Usage(now_ns + at_ns, step, taken) for at_ns, taken in once)
        now_ns += long_ns
    return settled(usage)


def _watch(simulator: Simulator, facts: StepFacts) -> tuple[_Told, int]:
    told: _Told = []
    step = simulator.step(facts, lambda now_ns, taken: told.append((now_ns, bytes_of(taken))))
    return told, step.long_ns
