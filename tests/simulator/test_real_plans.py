"""The built-in runtimes' plans with the kernels' own work: every pair predicts, every number of a profile matters."""

from __future__ import annotations

import subprocess
import sys

import attrs
import pytest

from sparda_core.facts import steady_facts
from sparda_core.plan import Lane
from sparda_core.runtime import Runtime
from sparda_core.runtimes.offload_prefetch import OffloadPrefetch
from sparda_core.runtimes.offload_sync import OffloadSync
from sparda_core.runtimes.resident import Resident
from sparda_core.selector import Selector
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.infinigen import InfiniGen
from sparda_core.selectors.query import Query
from sparda_core.shapes import BlockSpec, ModelShape, named_shape
from sparda_core.simulator.fluid import ceil_ns
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import Copy, slowdown
from sparda_core.simulator.predict import Prediction, kernel_work, predict
from sparda_core.simulator.profile_file import load_profile
from sparda_core.simulator.quantity import BendCurve, CrowdCurve, PieceCurve, Quantity, RowsCurve, WaveShare
from sparda_core.spans import exposed_wait_ns
from sparda_core.work import WorkContext

SHAPE = named_shape("minicpm4.1-8b")
SPEC = BlockSpec(sink=1, local=32, budget=96)


def h200() -> GpuProfile:
    profile = load_profile("h200")
    assert isinstance(profile, GpuProfile)
    return profile


def made(
    runtime: Runtime, selector: Selector, *, profile: GpuProfile | None = None, batch: int = 8, churn: float = 0.1,
    context: int = 131072, ctas: int = 2, cluster: int = 1, shape: ModelShape = SHAPE, repeated: bool = False,
) -> Prediction:  # fmt: skip
    plan = runtime.decode_plan(shape=shape, spec=SPEC, selector=selector)
    facts = steady_facts(
        shape=shape, spec=SPEC, batch=batch, context=context, churn=churn, resident_layers=plan.resident_layers
    )
    of = WorkContext(
        shape=shape, spec=SPEC, copy_ctas=ctas, copy_cluster=cluster, forecast="forecast" in selector.needs
    )
    work = kernel_work(plan, of, selector)
    return predict(
        plan, facts, context=of, selector=selector, profile=profile or h200(),
        work_of_op=lambda op, seen: attrs.evolve(work(op, seen), repeated=repeated),
    )  # fmt: skip


PAIRS = [
    (Resident(), Query()), (Resident(), Forecast()), (Resident(), InfiniGen()),
    (OffloadSync(engine="uva"), Query()), (OffloadSync(engine="copy-engine"), Forecast()),
    (OffloadSync(engine="cpu-gather"), InfiniGen()), (OffloadPrefetch(engine="uva"), Forecast()),
    (OffloadPrefetch(engine="cpu-gather"), InfiniGen()),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "selector"), PAIRS, ids=lambda part: part.name)
def test_every_pair_predicts_and_its_spans_are_the_plans_operations(runtime: Runtime, selector: Selector) -> None:
    got = made(runtime, selector)
    plan = runtime.decode_plan(shape=SHAPE, spec=SPEC, selector=selector)
    assert got.feasible
    for lane in Lane:
        assert [span.name for span in got.timeline.lane(lane)] == [op.name for op in plan.lane(lane)]
    # Weights are read once a step, and never faster than device memory allows.
    assert got.step_s > SHAPE.layers * SHAPE.layer_weights * 2 / 4.23e12
    assert sum(got.spent.values()) == pytest.approx(got.step_s)


def test_lookahead_pays_where_sync_waits_and_hides_most_of_it() -> None:
    resident, sync, early = (
        made(runtime, Forecast(), churn=0.1)
        for runtime in (Resident(), OffloadSync(engine="uva"), OffloadPrefetch(engine="uva"))
    )
    hidden = (sync.step_s - early.step_s) / (sync.step_s - resident.step_s)
    assert 0.9 < hidden < 1


def test_a_copy_can_look_hidden_and_still_cost_where_it_holds_too_many_sms() -> None:
    two, four = (made(OffloadPrefetch(engine="uva"), Forecast(), ctas=ctas) for ctas in (2, 4))
    plan = OffloadPrefetch(engine="uva").decode_plan(shape=SHAPE, spec=SPEC, selector=Forecast())
    for got in (two, four):
        # No layer waits for more than the launch of its attention.
        assert set(exposed_wait_ns(got.timeline, plan).values()) == {ceil_ns(h200().launch.graph_s.value)}
    assert four.step_s > 1.01 * two.step_s


def test_no_misses_cost_prefetch_nothing_but_launches() -> None:
    early = made(OffloadPrefetch(engine="uva"), Forecast(), churn=0.0)
    resident = made(Resident(), Forecast(), churn=0.0)
    diffs = early.by_kind["diff"]
    through = early.by_kind["append"] - resident.by_kind["append"]
    kernels = h200().kernels
    assert kernels is not None
    assert kernels.turn_s is not None
    launches = 31 * h200().launch.graph_s.value
    # Its diffs choose along: no choice is a launch of its own.
    choices = launches + 31 * kernels.turn_s.value
    assert early.step_s == pytest.approx(resident.step_s + diffs + through + launches - choices, abs=0.2e-6)


#: Numbers that only say what the machine is: lint and the reader look at them, no law does.
SAYS_ONLY = {"link.generation", "link.lanes"}


def scenes(profile: GpuProfile) -> list[float]:
    """Outputs of a few predictions that among them should depend on every number."""
    eager = attrs.evolve(profile, launches="eager")
    few = attrs.evolve(SHAPE, layers=5)
    uva, engine = (OffloadPrefetch(engine=name) for name in ("uva", "copy-engine"))
    every = [
        made(uva, Forecast(), profile=profile, shape=few, batch=16),
        # Attention of which some SM holds three thread blocks: copies outlast everything beside it.
        made(uva, Forecast(), profile=profile, shape=few, batch=48, churn=0.3),
        made(uva, Forecast(), profile=profile, shape=few, ctas=1),
        made(uva, Forecast(), profile=profile, shape=few, ctas=4, batch=16),
        made(uva, Forecast(), profile=profile, shape=few, ctas=2, cluster=2, batch=16, churn=0.3),
        made(uva, Forecast(), profile=profile, shape=few, ctas=1, repeated=True),
        made(engine, Forecast(), profile=profile, shape=few),
        made(OffloadSync(engine="cpu-gather"), InfiniGen(), profile=profile, shape=few),
        # As slow as the host.
        made(OffloadPrefetch(engine="cpu-gather"), Forecast(), profile=profile, shape=few, churn=0.2),
        made(Resident(), Query(), profile=eager, shape=few, context=8192, batch=1),
        made(Resident(), Query(), profile=attrs.evolve(profile, extrapolate=True), shape=few, context=8192, batch=400),
    ]
    out = [value for got in every if got.feasible for value in (got.step_s, got.exposed_s)]
    # Copies that come while a product runs and find little room.
    out.append(slowdown(Copy(ctas=32, in_flight=16384), 64, profile))
    return [*out, sum(got.need.device for got in every), *(float(got.feasible) for got in every)]


def numbers(profile: GpuProfile) -> list[str]:
    return sorted(set(profile.bases()) - SAYS_ONLY)


def changed(profile: GpuProfile, name: str) -> GpuProfile:
    """The profile with one number (or table) a fifth of, or far above, what it was."""
    section, field = name.split(".")
    part = getattr(profile, section)
    value = getattr(part, field)
    if isinstance(value, Quantity):
        # Thread blocks that start together are whole, and copies must leave some SMs.
        least = {"compute.product_cluster": 1.0, "compute.sms": 40.0}.get(name, 0.0)
        fresh: object = value.with_value(max(least, value.value / 20) or 1e-5, "sensitivity")
    elif isinstance(value, BendCurve):
        fresh = attrs.evolve(value, bend=[1.0 for _ in value.bend])
    elif isinstance(value, RowsCurve):
        fresh = attrs.evolve(value, s=[x + 1e-5 for x in value.s])
    elif isinstance(value, WaveShare):
        fresh = attrs.evolve(value, share=[x + 0.5 for x in value.share])
    else:
        assert isinstance(value, PieceCurve | CrowdCurve)
        fresh = attrs.evolve(value, bytes_per_s=[x / 5 for x in value.bytes_per_s])
    return attrs.evolve(profile, **{section: attrs.evolve(part, **{field: fresh})})


@pytest.mark.parametrize("name", numbers(h200()))
def test_every_number_of_a_profile_moves_some_prediction(name: str) -> None:
    assert scenes(changed(h200(), name)) != BASE


BASE = scenes(h200())


def test_predicting_never_loads_torch() -> None:
    script = (
        "import sys; from tests.simulator.test_real_plans import *; "
        "made(OffloadPrefetch(engine='uva'), Forecast()); assert 'torch' not in sys.modules; print('light')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "light", done.stderr
