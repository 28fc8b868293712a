"""Predicting a cell from the same plan: its own recorded facts replayed, and facts drawn from a locality. Torch-free.

planned = planned_of(record.cell, profile)
prediction = planned.predict(record.measured.facts.step_facts())     # a simulator.predict.Prediction
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.record import DRAWN, REPLAYED, Predicted, Record
from sparda_core.bench.validate.traced_work import TracedWork
from sparda_core.compose import Combination, compose
from sparda_core.errors import ConfigError, RecordingError, SpardaError
from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, StepPlan
from sparda_core.selector import Selector
from sparda_core.selectors.dense import Dense
from sparda_core.shapes import ModelShape
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.predict import Prediction, kernel_work, predict
from sparda_core.simulator.profile import Charge, Profile
from sparda_core.simulator.profile_file import load_profile
from sparda_core.whatif.point import context_of, facts_of, notes_of, plan_of
from sparda_core.whatif.scenario import Scenario
from sparda_core.work import WorkContext

#: Where the traces of a GPU's cells are drawn from.
LOCALITY = "hisparse"
GIGA = 1e9


@attrs.frozen(kw_only=True, eq=False)
class Planned:
    """Everything that a prediction of a cell needs but its facts.

    selector  what states the work of the selector's operations as they were measured
    """

    pair: Combination
    selector: Selector
    plan: StepPlan
    context: WorkContext
    profile: Profile
    notes: dict[str, str] = attrs.field(factory=dict)

    def predict(self, facts: Sequence[StepFacts]) -> Prediction:
        """These steps, one after another; raises ProfileError where the profile has no law for them."""
        return predict(
            self.plan, facts, context=self.context, selector=self.selector, profile=self.profile, notes=self.notes
        )

    def with_profile(self, profile: Profile) -> Self:
        """The same on another machine."""
        return attrs.evolve(self, profile=profile)


def scenario_of(cell: ValidationCell, profile: str) -> Scenario:
    """A GPU's cell as knobs of `sparda predict`; raises ConfigError for a CPU's."""
    if cell.device != "cuda":
        raise ConfigError(f"device={cell.device!r}: a scenario speaks of random weights on a GPU; replay its facts")
    given: dict[str, Any] = {
        "shape": cell.shape, "batch": cell.batch, "context": cell.context, "selector": cell.selector,
        "runtime": cell.runtime, "block": cell.block, "budget": cell.budget, "sink": cell.sink, "local": cell.local,
        "profile": profile,
    }  # fmt: skip
    if cell.lead != 1:
        given["lead"] = cell.lead
    if cell.launches != "graph":
        given["launches"] = cell.launches
    if cell.offloads:
        given |= {
            "engine": cell.engine, "slot_factor": cell.slots, "policy": cell.policy, "locality": LOCALITY,
            "churn": cell.churn, "in_flight_kib": cell.in_flight_kib, **({"ctas": cell.ctas} if cell.ctas else {}),
        }  # fmt: skip
    return Scenario(**given)


def slowed(profile: Profile, background_bytes_per_s: float) -> Profile:
    """The profile with a link that has so much less to give: what another stream takes."""
    if not background_bytes_per_s:
        return profile
    return profile.with_link(profile.capacity()["h2d"] - background_bytes_per_s)


def planned_of(cell: ValidationCell, profile: str | Profile, *, background_bytes_per_s: float | None = None) -> Planned:
    """Plan and context of a GPU's cell.

    profile                 name, file, or one at hand
    background_bytes_per_s  what the other stream was seen to take; None: what the cell asks for
    Raises SpardaError where the cell is none that can be composed or predicted.
    """
    name = profile if isinstance(profile, str) else "h200"
    machine = load_profile(profile) if isinstance(profile, str) else profile
    if cell.launches != "graph" and isinstance(machine, GpuProfile):
        machine = attrs.evolve(machine, launches=cell.launches)
    scenario = scenario_of(cell, name)
    pair = scenario.combination()
    taken = cell.background_gb_s * GIGA if background_bytes_per_s is None else background_bytes_per_s
    return Planned(
        pair=pair, selector=_traced(pair.selector), plan=plan_of(scenario, pair),
        context=context_of(scenario, pair, machine), profile=slowed(machine, taken), notes=notes_of(scenario, pair),
    )  # fmt: skip


def _traced(selector: Selector) -> Selector:
    """A GPU's cells play a trace, but where every block is taken."""
    return selector if isinstance(selector, Dense) else TracedWork(inner=selector)


def planned_here(
    cell: ValidationCell, shape: ModelShape, selector_options: Mapping[str, Any], profile: Profile
) -> Planned:  # fmt: skip
    """Plan and context of a cell on this machine's CPU; its emulated link takes the profile's place."""
    pool = {"slots": cell.slot_count, "policy": cell.policy} if cell.offloads else {}
    pair = compose(
        shape, cell.selector, cell.runtime, spec=cell.spec, selector_options=dict(selector_options),
        runtime_options=pool,
    )  # fmt: skip
    size = 4.0  # models lie in float32 on a CPU
    context = WorkContext(
        shape=shape, spec=cell.spec, weight_bytes=size, kv_bytes=size, host_kv_bytes=size, entry_bytes=size,
        activation_bytes=size, forecast="forecast" in pair.selector.needs, forecast_lead=pair.selector.lead or 1,
    )  # fmt: skip
    machine = profile if cell.link_gb_s is None else profile.with_link(cell.link_gb_s * GIGA)
    return Planned(pair=pair, selector=pair.selector, plan=pair.plan(), context=context, profile=machine)


def planned_for(record: Record, profile: str | Profile) -> Planned:
    """Plan and context of a record, by its device; raises SpardaError where it is none that can be predicted."""
    cell, told = record.cell, record.identity
    if cell.device == "cuda":
        taken = None if record.measured is None else record.measured.background_bytes_per_s
        return planned_of(cell, profile, background_bytes_per_s=taken)
    if "shape" not in told:
        raise RecordingError(f"the record of {cell.key!r} does not say its model's sizes; measure it again")
    loaded = load_profile(profile) if isinstance(profile, str) else profile
    return planned_here(cell, ModelShape(**told["shape"]), told.get("selector_options", {}), loaded)


def drawn_facts(cell: ValidationCell, profile: str) -> Sequence[StepFacts]:
    """Facts as `sparda predict` takes them for the cell: of a mean step, from its locality and churn."""
    scenario = scenario_of(cell, profile)
    pair = scenario.combination()
    return facts_of(scenario, pair, plan_of(scenario, pair))


def predict_record(record: Record, profile: str | Profile, *, steps: int | None = None) -> Record:
    """The record with its predictions made anew.

    steps  of the recorded ones, evenly spread, are replayed; None: all
    What cannot be predicted says why in place of a time. A CPU's cells have no trace to draw: they are replayed.
    """
    made: dict[str, Predicted] = {}
    measured = record.measured
    try:
        ready = planned_for(record, profile)
        if measured is not None and measured.confirmed:
            made[REPLAYED] = figures(ready, spread(measured.facts.step_facts(), steps), replayed=True)
        if record.cell.device == "cuda":
            made[DRAWN] = figures(ready, drawn_facts(record.cell, profile if isinstance(profile, str) else "h200"))
    except SpardaError as wrong:
        way = DRAWN if record.cell.device == "cuda" else REPLAYED
        made.setdefault(way, Predicted(step_s=None, problem=" ".join(str(wrong).split())))
    return attrs.evolve(record, predicted=made)


def spread(facts: Sequence[StepFacts], most: int | None) -> Sequence[StepFacts]:
    """At most so many of the steps, evenly spread."""
    if most is None or len(facts) <= most:
        return facts
    return [facts[at * len(facts) // most] for at in range(most)]


def figures(planned: Planned, facts: Sequence[StepFacts], *, replayed: bool = False) -> Predicted:
    """One prediction as figures. Of `replayed` facts the median step, as it is measured; of drawn ones the mean."""
    got = planned.predict(facts)
    rests: dict[str, Any] = {"profile": planned.profile.name, "profile_digest": planned.profile.digest}
    if not got.feasible:
        return Predicted(step_s=None, problem=str(got.problem), **rests)
    return Predicted(
        step_s=got.median_step_s if replayed else got.step_s, transfer_s=got.transfer_s, exposed_s=got.exposed_s,
        compute_s=got.timeline.busy_ns(Lane.COMPUTE) / 1e9 / got.steps,
        bound=got.bound, by_kind=got.by_kind, spent=got.spent, **rests,
    )  # fmt: skip


def balance_of(planned: Planned, facts: Sequence[StepFacts]) -> tuple[float, float]:
    """Seconds of a step's copies and of its compute, each with nothing beside it.

    Copies are as they would be on an idle device, one fetch after the other.
    """
    quiet = [attrs.evolve(one, misses=one.misses * 0, late=one.late * 0) for one in facts]
    compute_s = planned.predict(quiet).step_s
    work = kernel_work(planned.plan, planned.context, planned.selector)
    total, capacity = 0.0, planned.profile.capacity()
    for one in facts:
        tokens = max(1, one.rows * one.new_tokens)
        for op in planned.plan.lane(Lane.H2D):
            asked = work(op, one)
            if asked.h2d_bytes:
                price = planned.profile.price(op, asked, plan=planned.plan, tokens=tokens)
                total += price.latency_s + price.launch_s + max(_alone_s(flow, capacity) for flow in price.charges)
    return total / len(facts), compute_s


def _alone_s(flow: Charge, capacity: Mapping[str, float]) -> float:
    """Seconds of a flow that has every resource to itself."""
    rates = (capacity[name] / share for name, share in flow.uses.items() if share)
    return flow.size / min(flow.cap, *rates, math.inf)
