"""From records to judged cells: every model on the plan and the facts of each. Torch-free."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import attrs

from sparda_core.bench.validate.predicting import Planned, drawn_facts, planned_for, spread
from sparda_core.bench.validate.record import Record
from sparda_core.bench.verdict.judged import HOST, Judged, Part
from sparda_core.errors import SpardaError
from sparda_core.facts import StepFacts
from sparda_core.simulator.alone import overlaps
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.predict import kernel_work
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.run import Run, WorkOfOp
from sparda_core.simulator.step_models import FULL, STEP_MODELS

#: Of recorded steps, so many are replayed at most: a median of as many is as good.
MOST_REPLAYED = 48
Progress = Callable[[str, int, int], None]
#: Parts of a record besides its step time; None where nothing else was measured.
PartsOf = Callable[[Record, "Ready"], Sequence[Part]]


@attrs.frozen(kw_only=True, eq=False)
class Ready:
    """A record's plan with everything that a prediction needs.

    facts   the facts that the judged prediction is made from
    replay  the record's own, at most MOST_REPLAYED of them; empty where it has none
    """

    planned: Planned
    work: WorkOfOp
    facts: Sequence[StepFacts]
    replay: Sequence[StepFacts]

    def seconds(self, model: str) -> float:
        """Mean seconds of a step by one of STEP_MODELS."""
        return STEP_MODELS[model].seconds(self.planned.plan, self.facts, self.work, self.planned.profile)

    def run(self, facts: Sequence[StepFacts], model: str = FULL) -> Run:
        """Simulated steps under these facts; `model` is one that simulates."""
        simulated = STEP_MODELS[model].run
        assert simulated is not None, f"{model} is a formula: it has no steps"
        return simulated(self.planned.plan, facts, self.work, self.planned.profile)

    @property
    def host_issues(self) -> bool:
        """Whether the host issues the operations of a step, or must wait in the midst of it."""
        machine = self.planned.profile
        return isinstance(machine, GpuProfile) and machine.launches_of(self.planned.plan) != "graph"


def ready_of(record: Record, profile: str | Profile) -> Ready:
    """What predictions of a record need; raises SpardaError where it cannot be predicted."""
    planned = planned_for(record, profile)
    measured = record.measured
    confirmed = measured is not None and measured.confirmed
    replay = spread(measured.facts.step_facts(), MOST_REPLAYED) if measured is not None and confirmed else ()
    # Facts hang on no number of a profile: any GPU's will do where one is at hand without a name.
    drawn_on = profile if isinstance(profile, str) else "h200"
    facts = drawn_facts(record.cell, drawn_on) if record.cell.device == "cuda" else replay
    work = kernel_work(planned.plan, planned.context, planned.selector)
    return Ready(planned=planned, work=work, facts=facts, replay=replay)


def judge_record(record: Record, profile: str | Profile, *, parts_of: PartsOf | None = None) -> Judged:
    """One record judged. What cannot be predicted says why, and is judged no further."""
    cell, measured = record.cell, record.measured
    made = Judged(
        key=cell.key, tier=record.tier, stratum=record.stratum, cell=cell.to_plain(), groups=record.groups,
        refused=record.refused,
    )  # fmt: skip
    if measured is not None:
        made = attrs.evolve(
            made, measured_s=measured.step_s, repeatability=measured.repeatability, moved_bytes=measured.moved_bytes
        )
    try:
        ready = ready_of(record, profile)
        return _predicted(made, record, ready, parts_of)
    except SpardaError as wrong:
        return attrs.evolve(made, problem=f"no prediction: {' '.join(str(wrong).split())}")


def _predicted(made: Judged, record: Record, ready: Ready, parts_of: PartsOf | None) -> Judged:
    models = {name: ready.seconds(name) for name in STEP_MODELS if _applies(name, ready)} if ready.facts else {}
    replayed_s = statistics.median(ready.run(ready.replay).step_ns) / 1e9 if ready.replay else None
    ctas = None
    if record.cell.offloads and ready.planned.plan.engine == "uva":
        ctas = ready.planned.context.copy_ctas
    made = _with_parts(made, record, ready, parts_of)
    by_host = record.cell.launches != "graph" or ready.host_issues
    return attrs.evolve(
        made, stratum=HOST if by_host else made.stratum, overlaps=overlaps(ready.planned.plan),
        copy_ctas=ctas, models=models, replayed_s=replayed_s,
        drawn_s=models.get(FULL) if record.cell.device == "cuda" else None,
    )  # fmt: skip


def _with_parts(made: Judged, record: Record, ready: Ready, parts_of: PartsOf | None) -> Judged:
    """Parts that cannot be told say so, and leave the prediction as it is."""
    if parts_of is None or record.measured is None:
        return made
    try:
        return attrs.evolve(made, parts=tuple(parts_of(record, ready)))
    except SpardaError as wrong:
        return attrs.evolve(made, problem=f"no parts: {' '.join(str(wrong).split())}")


def _applies(model: str, ready: Ready) -> bool:
    """A machine whose times are all fitted has no roofline."""
    from sparda_core.simulator.step_models import ROOFLINE

    return model != ROOFLINE or isinstance(ready.planned.profile, GpuProfile)


def judge_records(
    records: Sequence[Record], profile: str | Profile, *, parts_of: PartsOf | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Judged, ...]:  # fmt: skip
    """All records, in their order."""
    made = []
    for done, record in enumerate(records):
        progress("judging cells", done, len(records))
        made.append(judge_record(record, profile, parts_of=parts_of))
    progress("judging cells", len(records), len(records))
    return tuple(made)
