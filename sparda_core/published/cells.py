"""Predicts cells of the published table from the reference release's plan and a handful of assumptions."""

from __future__ import annotations

from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import steady_facts
from sparda_core.plan import Kind, Lane
from sparda_core.published.capacity import ReferenceNeed, reference_need, reference_problem
from sparda_core.published.kernels import Paces
from sparda_core.published.schedule import ReferenceRuntime, host_launches, work_of
from sparda_core.published.table import CONTEXT, Cell
from sparda_core.registry import SELECTORS
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.predict import Prediction, predict
from sparda_core.simulator.profile_file import load_profile
from sparda_core.work import WorkContext

SHAPE = named_shape("minicpm4.1-8b")
SPEC = BlockSpec(sink=1, local=32, budget=96)
WORK = WorkContext(shape=SHAPE, spec=SPEC)

#: 1 - 0.889, the step-to-step hit rate of InfLLM-V2 on a 1B model (NOSA); none is published for this model.
CHURN = 0.111
#: Busy for this share of a step bounds it.
_NEARLY = 0.9
#: An H100's kernels that read host memory: 35.2 GB/s on each of eight (nvbandwidth issue 24; H20, H800 alike).
UVA_BYTES_PER_S = 35.2e9


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"{attribute.name}={value} must be finite and > 0")


@attrs.frozen(kw_only=True)
class Assumptions:
    """What the paper does not say, the same for every cell.

    churn            share of a selection that was not in the last one, for both selectors
    launch_s         host time of a launch; None: the profile's
    uva_bytes_per_s  most that kernels read of host memory; None: the profile's
    paces            of kernels whose grids are too small or too long
    """

    profile: str = "h100-sxm"
    churn: float = CHURN
    launch_s: float | None = attrs.field(default=None, validator=_positive)
    uva_bytes_per_s: float | None = attrs.field(default=UVA_BYTES_PER_S, validator=_positive)
    paces: Paces = Paces()

    def machine(self) -> GpuProfile:
        """The profile with what is assumed here; the host launches every kernel, which have paces of their own."""
        profile = load_profile(self.profile)
        if not isinstance(profile, GpuProfile) or profile.uva is None:
            raise ConfigError(f"profile={self.profile!r} must be a GPU's with a section uva; see `sparda profile list`")
        launch, uva = profile.launch, profile.uva
        if self.launch_s is not None:
            launch = attrs.evolve(launch, eager_s=launch.eager_s.with_value(self.launch_s, "assumed for this table"))
        if self.uva_bytes_per_s is not None:
            ceiling = uva.ceiling_bytes_per_s.with_value(self.uva_bytes_per_s, "nvbandwidth issue 24, H100")
            uva = attrs.evolve(uva, ceiling_bytes_per_s=ceiling)
        return attrs.evolve(profile, launch=launch, uva=uva, kernels=None, launches="eager")


@attrs.frozen(kw_only=True)
class CellResult:
    """What is predicted for one cell. Seconds are per step; None where it does not fit into memory.

    launches    launches of the host in a step
    host_s      what they take of the host's time; a step cannot be shorter
    compute_s   the compute stream was busy
    transfer_s  the link was busy
    exposed_s   attention waited for the link
    by_part     seconds of the kernels, by products, attention, selection, transfer and the rest
    problem     why it does not fit
    """

    cell: Cell
    need: ReferenceNeed
    problem: str | None
    launches: int = 0
    step_s: float | None = None
    host_s: float | None = None
    compute_s: float | None = None
    transfer_s: float | None = None
    exposed_s: float | None = None
    by_part: dict[str, float] = attrs.field(factory=dict)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second, all rows together."""
        return None if self.step_s is None else self.cell.batch / self.step_s

    @property
    def error(self) -> float | None:
        """Predicted over published tokens/s, less 1; None unless both have a time."""
        if self.tokens_per_s is None or self.cell.tokens_per_s is None:
            return None
        return self.tokens_per_s / self.cell.tokens_per_s - 1

    @property
    def bound(self) -> str | None:
        """The host where it is busy for nearly all of a step, else the busier of compute stream and link."""
        if self.step_s is None or self.host_s is None or self.compute_s is None or self.transfer_s is None:
            return None
        if self.host_s > _NEARLY * self.step_s:
            return "host"
        return "link" if self.transfer_s > self.compute_s else "compute"


def predict_cell(cell: Cell, assumed: Assumptions) -> CellResult:
    """Memory first, then the time of a step in a steady state."""
    profile = assumed.machine()
    need = reference_need(cell.mode, batch=cell.batch, context=CONTEXT, work=WORK, profile=profile)
    problem = reference_problem(need, profile)
    if problem is not None:
        return CellResult(cell=cell, need=need, problem=problem)
    runtime = ReferenceRuntime(mode=cell.mode)
    plan = runtime.decode_plan(SHAPE)
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=cell.batch, context=CONTEXT, churn=assumed.churn)
    work = work_of(runtime, WORK, assumed.paces)
    got = predict(
        plan, facts, context=WORK, selector=SELECTORS.make(runtime.selector), profile=profile, work_of_op=work
    )
    launches = host_launches(plan, work, facts)
    return CellResult(
        cell=cell, need=need, problem=None, launches=launches, step_s=got.step_s,
        host_s=launches * profile.launch.eager_s.value, compute_s=got.timeline.busy_ns(Lane.COMPUTE) / 1e9,
        transfer_s=got.transfer_s, exposed_s=_waits_s(got), by_part=_parts(got),
    )  # fmt: skip


_PARTS = {
    "qkv": "products", Kind.OUTPUT: "products", Kind.MLP: "products", "mlp-down": "products", Kind.HEAD: "products",
    Kind.ATTEND: "attention", "score": "selection", "select": "selection", Kind.DIFF: "selection",
    Kind.FETCH: "transfer", "copy": "transfer",
}  # fmt: skip


#: What a step's kernels are for; the keys of CellResult.by_part.
PARTS = tuple(dict.fromkeys((*_PARTS.values(), "rest")))


def _parts(got: Prediction) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, seconds in got.by_kind.items():
        parts[_PARTS.get(kind, _PARTS.get(kind.partition("-")[0], "rest"))] += seconds
    return parts


def _waits_s(got: Prediction) -> float:
    """Time in which the compute stream stood still while the link was busy."""
    compute = got.timeline.busy_ns(Lane.COMPUTE)
    both = attrs.evolve(
        got.timeline,
        spans=tuple(
            attrs.evolve(span, lane=Lane.COMPUTE)
            for span in got.timeline.spans
            if span.lane in (Lane.COMPUTE, Lane.H2D)
        ),
    )
    return (both.busy_ns(Lane.COMPUTE) - compute) / 1e9
