"""Every way to predict a step's time that is compared, by name: the simulator, its ablations, others' formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import StepPlan
from sparda_core.simulator.ablations import fixed_at_start, longer_lane_s, without_contention
from sparda_core.simulator.outside import max_of_sums_s, overlapped_roofline_s
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import Run, WorkOfOp, run_steps

Seconds = Callable[[StepPlan, Sequence[StepFacts], WorkOfOp, Profile], float]
Simulated = Callable[[StepPlan, Sequence[StepFacts], WorkOfOp, Profile], Run]


@attrs.frozen(kw_only=True)
class StepModel:
    """One way to predict.

    name     as tables show it
    what     what it assumes, in a few words
    seconds  mean seconds of a step, the gap before it included, from (plan, facts of each step, work, profile)
    run      the same as simulated steps, which have a timeline; None for a formula
    """

    name: str
    what: str
    seconds: Seconds
    run: Simulated | None = None


def _mean_s(run: Run) -> float:
    return sum(run.step_ns) / len(run.step_ns) / 1e9


def _simulated(name: str, what: str, run: Simulated) -> StepModel:
    return StepModel(name=name, what=what, run=run, seconds=lambda *given: _mean_s(run(*given)))


FULL, NO_CONTENTION, LONGER, FIXED = "full model", "no contention", "max(copy, compute)", "share fixed at start"
ROOFLINE, MAX_OF_SUMS = "overlapped roofline", "max of sums"

STEP_MODELS: Mapping[str, StepModel] = {
    model.name: model
    for model in (
        _simulated(FULL, "the simulator", run_steps),
        _simulated(NO_CONTENTION, "plan order and launches, every operation as fast as alone", without_contention),
        StepModel(name=LONGER, what="the longer lane alone; their sum where nothing overlaps", seconds=longer_lane_s),
        _simulated(FIXED, "an operation keeps the share that it started with", fixed_at_start),
        StepModel(name=ROOFLINE, what="GenZ's formula: bytes and FLOPs only, offload overlaps perfectly",
                  seconds=overlapped_roofline_s),
        StepModel(name=MAX_OF_SUMS, what="AIConfigurator's formula: operations alone, overlapped groups by the longer",
                  seconds=max_of_sums_s),
    )
}  # fmt: skip


def step_model(name: str) -> StepModel:
    """A way to predict by name; raises ConfigError for one that is not known."""
    if name not in STEP_MODELS:
        raise ConfigError(f"model={name!r} is unknown; known: {', '.join(STEP_MODELS)}")
    return STEP_MODELS[name]
