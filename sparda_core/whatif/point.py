"""Predicting one scenario. Plans and facts that scenarios share are made once a process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.compose import Combination, compose
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape, named_shape
from sparda_core.whatif.knobs import MOST_STEPS
from sparda_core.work import WorkContext

if TYPE_CHECKING:
    from sparda_core.simulator.locality import LocalityModel
    from sparda_core.simulator.memory import MemoryNeed
    from sparda_core.simulator.predict import Prediction
    from sparda_core.simulator.profile import Profile
    from sparda_core.whatif.scenario import Scenario

KIB = 1024
#: Most counts (layer, row, KV head, step) of facts that are kept for other scenarios: 64 such facts fill memory enough.
MOST_KEPT = 10**5


def predict_point(scenario: Scenario) -> Prediction:
    """See Scenario.predict."""
    from sparda_core.simulator.predict import predict

    machine = scenario.machine()
    pair = scenario.combination()
    plan = plan_of(scenario, pair)
    if plan.engine == "uva" and scenario.ctas % scenario.cluster:
        raise ConfigError(f"ctas={scenario.ctas} must be a multiple of cluster={scenario.cluster}, which starts whole")
    return predict(
        plan, facts_of(scenario, pair, plan), context=context_of(scenario, pair, machine), selector=pair.selector,
        profile=machine, notes=notes_of(scenario, pair),
    )  # fmt: skip


def combination_of(scenario: Scenario) -> Combination:
    """See Scenario.combination."""
    asked = scenario.spec()
    pair = _under(scenario, asked)
    cut = pair.selector.cut(asked, scenario.context + (scenario.steps or 1) - 1)
    return pair if cut == asked else _under(scenario, cut)


def _under(scenario: Scenario, spec: BlockSpec) -> Combination:
    """The combination under a cut; made once for equal knobs, since looking a name up asks every distribution."""
    options = {
        "engine": scenario.engine or scenario.machine().engines[0], "slots": scenario.slot_count(spec.budget),
        "policy": scenario.policy, "resident_layers": scenario.resident_layers,
    }  # fmt: skip
    added = SELECTORS.added(scenario.selector), RUNTIMES.added(scenario.runtime)
    return _combination(
        named_shape(scenario.shape), spec, scenario.selector, scenario.selector_options, scenario.lead,
        scenario.runtime, tuple(options.items()), added,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _combination(
    shape: ModelShape, spec: BlockSpec, selector: str, selector_options: tuple[tuple[str, Any], ...],
    lead: int | None, runtime: str, options: tuple[tuple[str, Any], ...], _: tuple[object, object],
) -> Combination:  # fmt: skip
    chosen = {**dict(selector_options), **lead_options(selector, lead)}
    return compose(
        shape, selector, runtime, spec=spec, selector_options=chosen, runtime_options=dict(options)
    )


def plan_of(scenario: Scenario, pair: Combination) -> StepPlan:
    """The plan of a step, or of one chunk of prefill."""
    mode = scenario.prefill if scenario.phase == "prefill" else ""
    try:
        hash((pair.runtime, pair.selector))
    except TypeError:  # a plug-in of its own making: nothing to look its plan up by
        return _plan.__wrapped__(pair.runtime, pair.selector, pair.shape, pair.spec, mode)
    return _plan(pair.runtime, pair.selector, pair.shape, pair.spec, mode)


@functools.lru_cache(maxsize=64)
def _plan(runtime: Runtime, selector: Selector, shape: ModelShape, spec: BlockSpec, mode: str) -> StepPlan:
    if mode:
        return runtime.prefill_plan(shape=shape, spec=spec, selector=selector, mode=mode)
    return runtime.decode_plan(shape=shape, spec=spec, selector=selector)


def context_of(scenario: Scenario, pair: Combination, machine: Profile) -> WorkContext:
    """Sizes of values, and the shape of the copy kernel."""
    size = scenario.value_bytes or (4.0 if machine.device == "cpu" else 2.0)
    return WorkContext(
        shape=pair.shape, spec=pair.spec, weight_bytes=size, kv_bytes=size,
        host_kv_bytes=min(1.0, size) if scenario.host_dtype == "fp8" else size, entry_bytes=size, activation_bytes=size,
        copy_ctas=scenario.ctas, copy_cluster=scenario.cluster,
        copy_in_flight_bytes=(scenario.in_flight_kib or 0) * KIB, forecast="forecast" in pair.selector.needs,
        forecast_lead=pair.selector.lead or 1, policy=scenario.policy,
    )  # fmt: skip


def facts_of(scenario: Scenario, pair: Combination, plan: StepPlan) -> Sequence[StepFacts]:
    """Facts of the steps to predict, one after another; of prefill the chunks of one row, as rows are read in turn."""
    slots = scenario.slot_count(pair.spec.budget) if plan.resident_layers < pair.shape.layers else 0
    if scenario.phase == "prefill":
        from sparda_core.simulator.prefill_facts import prefill_facts

        chunks = -(-scenario.context // scenario.chunk)
        if chunks > MOST_STEPS:
            least = -(-scenario.context // MOST_STEPS)
            made = f"chunk={scenario.chunk} makes {chunks} chunks of context={scenario.context}"
            raise ConfigError(f"{made}; use >= {least}")
        return prefill_facts(
            pair.shape, pair.spec, tokens=scenario.context, chunk=scenario.chunk, mode=scenario.prefill, slots=slots
        )
    still = unmoved(scenario, pair)
    # What does not fit needs no misses: they take longest where there are most slots.
    if scenario.recording is not None and not still and room(scenario)[1] is None:
        from sparda_core.whatif.recorded import facts_of_recording

        return facts_of_recording(scenario, pair, plan.resident_layers)
    if scenario.locality is not None and pair.spec.free and room(scenario)[1] is None:
        model = locality_of(scenario)
        model.check(pair.spec, scenario.context)
        if not still:
            return _played(
                model, shape=pair.shape, spec=pair.spec, batch=scenario.batch, context=scenario.context,
                slots=scenario.slot_count(pair.spec.budget), policy=scenario.policy,
                resident_layers=plan.resident_layers, steps=scenario.steps or 1, seed=scenario.seed,
                steady=scenario.steps is None,
            )  # fmt: skip
    churn = 0.0 if still or scenario.recording is not None else scenario.churn_share()
    if churn * pair.spec.budget > pair.spec.free + 1e-9:
        raise ConfigError(
            f"churn={churn:g} must be <= {pair.spec.free / pair.spec.budget:.4g}: of budget={pair.spec.budget} only "
            f"{pair.spec.free} blocks are free to change; lower churn, sink or local, or raise budget"
        )
    once = _steady(pair.shape, pair.spec, scenario.batch, scenario.context, churn, plan.resident_layers, slots)
    return (once,) * (scenario.steps or 1)


def locality_of(scenario: Scenario) -> LocalityModel:
    """The scenario's locality, at the scenario's churn where one is given; raises as `load_locality`."""
    from sparda_core.simulator.locality_file import load_locality

    assert scenario.locality is not None
    model = load_locality(scenario.locality)
    return model if scenario.churn is None else attrs.evolve(model, churn=scenario.churn)


def _steady(
    shape: ModelShape, spec: BlockSpec, batch: int, context: int, churn: float, resident: int, slots: int
) -> StepFacts:
    small = shape.layers * shape.kv_heads * batch <= MOST_KEPT
    make = _kept_steady if small else _kept_steady.__wrapped__
    return make(shape, spec, batch, context, churn, resident, slots)


@functools.lru_cache(maxsize=64)
def _kept_steady(
    shape: ModelShape, spec: BlockSpec, batch: int, context: int, churn: float, resident: int, slots: int
) -> StepFacts:
    return steady_facts(
        shape=shape, spec=spec, batch=batch, context=context, churn=churn, resident_layers=resident, slots=slots
    )


def _played(model: LocalityModel, *, shape: ModelShape, batch: int, steps: int, **load: Any) -> tuple[StepFacts, ...]:
    """What `locality_facts` makes of these arguments."""
    small = shape.layers * shape.kv_heads * batch * steps <= MOST_KEPT
    make = _kept_played if small else _kept_played.__wrapped__
    return make(model, shape=shape, batch=batch, steps=steps, **load)


@functools.lru_cache(maxsize=64)
def _kept_played(model: LocalityModel, **load: Any) -> tuple[StepFacts, ...]:
    from sparda_core.simulator.locality_facts import locality_facts

    return locality_facts(model, **load)


def lead_options(selector: str, lead: int | None) -> dict[str, int]:
    """The option that sets a selector's lead; empty where it is as asked. Raises ConfigError where it is fixed."""
    if lead is None:
        return {}
    factory = SELECTORS.factory(selector)
    if "lead" in inspect.signature(factory).parameters:
        return {"lead": lead}
    fixed = getattr(factory, "lead", None)
    if fixed == lead:
        return {}
    known = "any the runtime wants" if fixed is None else fixed
    raise ConfigError(
        f"lead={lead} cannot be set: the lead of selector {selector!r} is {known}; leave lead out, or use 'forecast'"
    )


def unmoved(scenario: Scenario, pair: Combination) -> str:
    """Why a decode step brings no block back, whatever the churn; empty where it may."""
    if pair.spec.block_count(scenario.context + (scenario.steps or 1) - 1) <= pair.spec.budget:
        return "the budget holds every block of a row"
    return "" if pair.spec.free else "all blocks of the budget are forced, and none of these comes back"


def notes_of(scenario: Scenario, pair: Combination) -> dict[str, str]:
    """What a prediction rests on besides the profile, for its provenance."""
    shape, still = pair.shape, unmoved(scenario, pair)
    notes = {"locality": "churn alone: every newcomer is a miss"}
    if scenario.phase == "prefill":
        notes = {"locality": "none: a prefill stages earlier blocks whole"}
    elif not pair.runtime.offloads:
        notes = {"locality": "none: every block stays on the device"}
    elif still:
        notes = {"locality": f"none: {still}"}
    elif scenario.locality is not None:
        model = locality_of(scenario)
        notes = {"locality": f"{model.name}, churn {model.churn:g}", "seed": str(scenario.seed)}
    elif scenario.recording is not None:
        from sparda_core.whatif.recorded import miss_share

        share = miss_share(scenario, pair.spec.budget)
        notes = {"locality": f"recording {scenario.recording}, of which {share:.2%} of a selection is missed"}
    if scenario.context > shape.context:
        notes["beyond_native_context"] = f"{scenario.context} of {shape.context} tokens"
    return notes


def room(scenario: Scenario) -> tuple[MemoryNeed, CapacityError | None]:
    """Memory of a decode step, and why it does not fit; nothing is simulated. Raises like `Scenario.combination`."""
    from sparda_core.simulator.memory import memory_need, shortage

    machine, pair = scenario.machine(), scenario.combination()
    plan = plan_of(scenario, pair)
    slots = scenario.slot_count(pair.spec.budget) if plan.resident_layers < pair.shape.layers else 0
    facts = _steady(pair.shape, pair.spec, scenario.batch, scenario.context, 0.0, plan.resident_layers, slots)
    need = memory_need(plan, facts, context_of(scenario, pair, machine), machine)
    return need, shortage(need, machine)
