"""What each resource gives while simulated steps run: the counters of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import StepPlan
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.link import ceil_ns
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import WorkOfOp, run_step
from sparda_core.trace_counters import Usage, settled
from sparda_core.trace_source import Origin, TraceSource

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction


def traced(got: Prediction, *, label: str | None = None) -> TraceSource:
    """A prediction as a source of a trace, with counters and what it rests on; `label` replaces the timeline's own.

    Raises CapacityError where the point does not fit.
    """
    timeline = got.timeline if label is None else attrs.evolve(got.timeline, label=label)
    notes = {"step_s": got.step_s, "provenance": got.provenance}
    return TraceSource(timeline=timeline, plan=got.plan, origin=Origin.PREDICTED, usage=got.usage, notes=notes)


def observe_steps(
    plan: StepPlan, facts: Sequence[StepFacts], work_of_op: WorkOfOp, profile: Profile
) -> tuple[Usage, ...]:
    """Usage of every resource over the steps that `run_steps` runs, on the same clock.

    Each distinct step is simulated once more, with somebody watching. The link's two directions are
    told as payload: what one takes of the other for requests is no byte that anybody moved.
    """
    gap_ns = ceil_ns(profile.step_s)
    crosstalk = profile.link.crosstalk if isinstance(profile, GpuProfile) else 0.0
    seen: dict[int, tuple[list[tuple[int, dict[str, float]]], int]] = {}
    usage: list[Usage] = []
    now_ns = 0
    for step, fact in enumerate(facts):
        if id(fact) not in seen:
            seen[id(fact)] = _watch(plan, fact, work_of_op, profile, crosstalk)
        once, long_ns = seen[id(fact)]
        now_ns += gap_ns
        usage += (Usage(now_ns + at_ns, step, taken) for at_ns, taken in once)
        now_ns += long_ns
    return settled(usage)


def _watch(
    plan: StepPlan, facts: StepFacts, work_of_op: WorkOfOp, profile: Profile, crosstalk: float
) -> tuple[list[tuple[int, dict[str, float]]], int]:
    told: list[tuple[int, dict[str, float]]] = []
    _, end_ns = run_step(
        plan, facts, work_of_op, profile,
        observer=lambda now_ns, taken: told.append((now_ns, _payload(taken, crosstalk))),
    )  # fmt: skip
    # A step ends with nothing under way, whoever spoke last.
    return [*told, (end_ns, dict.fromkeys(told[-1][1], 0.0))] if told else told, end_ns


def _payload(taken: Mapping[str, float], crosstalk: float) -> dict[str, float]:
    """The link's directions without what each takes of the other: up = u - c down, down = d - c up, solved.

    At a crosstalk of 1 (half duplex) the two cannot be told apart; then what the link carries stands.
    """
    told = dict(taken)
    if crosstalk in (0.0, 1.0):
        return told
    up, down = taken["h2d"], taken["d2h"]
    for name, mine, other in (("h2d", up, down), ("d2h", down, up)):
        payload = (mine - crosstalk * other) / (1 - crosstalk**2)
        # What is left of a difference of equal numbers is rounding.
        told[name] = payload if payload > 1e-9 * max(up, down) else 0.0
    return told
