"""Points of a study with few layers: a built-in pair, the kernels' own work, a shipped machine, a load."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from sparda_core.facts import StepFacts, steady_facts
from sparda_core.plan import Op, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtime import Runtime
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.simulator import predict as predicting
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.predict import Prediction
from sparda_core.simulator.profile_file import load_profile
from sparda_core.work import Work, WorkContext

#: The 8B model with four layers: everything that happens between layers happens three times.
SHAPE = attrs.evolve(named_shape("minicpm4.1-8b"), layers=4)
SPEC = BlockSpec(sink=1, local=32, budget=96)
#: Of a GPU.
ENGINES = ("uva", "copy-engine", "cpu-gather")
Rework = Callable[[Op, Work], Work]


@functools.cache
def machine(name: str) -> GpuProfile:
    profile = load_profile(name)
    assert isinstance(profile, GpuProfile)
    return profile


@attrs.frozen(kw_only=True)
class Point:
    """One prediction to make; `churn` is the share of each selection that is moved."""

    selector: Selector | str = "forecast"
    runtime: Runtime | str = "offload-prefetch"
    engine: str = "uva"
    profile: str = "h200"
    batch: int = 8
    context: int = 65536
    churn: float = 0.1
    ctas: int = 2

    def parts(self) -> tuple[Runtime, Selector, StepPlan]:
        chosen = SELECTORS.make(self.selector) if isinstance(self.selector, str) else self.selector
        where = RUNTIMES.make(self.runtime, engine=self.engine) if isinstance(self.runtime, str) else self.runtime
        return where, chosen, where.decode_plan(shape=SHAPE, spec=SPEC, selector=chosen)

    def machine(self) -> GpuProfile:
        # Laws hold outside the calibrated domain too.
        return attrs.evolve(machine(self.profile), extrapolate=True)

    def work_context(self) -> WorkContext:
        _, chosen, plan = self.parts()
        return WorkContext(
            shape=SHAPE, spec=SPEC, copy_ctas=self.ctas, forecast="forecast" in chosen.needs,
            resident_layers=plan.resident_layers,
        )  # fmt: skip

    def facts(self, plan: StepPlan) -> StepFacts:
        offloads = plan.resident_layers < SHAPE.layers
        return steady_facts(
            shape=SHAPE, spec=SPEC, batch=self.batch, context=self.context, churn=self.churn,
            resident_layers=plan.resident_layers, slots=SPEC.budget if offloads else 0,
        )  # fmt: skip

    def predict(
        self, *, turn: Callable[[GpuProfile], GpuProfile] | None = None, rework: Rework | None = None
    ) -> Prediction:
        """turn changes the machine, rework the work of each operation."""
        _, chosen, plan = self.parts()
        profile = self.machine()
        context = self.work_context()
        own = predicting.kernel_work(plan, context, chosen)
        return predicting.predict(
            plan, self.facts(plan), context=context, selector=chosen, profile=turn(profile) if turn else profile,
            work_of_op=own if rework is None else lambda op, facts: rework(op, own(op, facts)),
        )  # fmt: skip


def as_json(got: Prediction) -> str:
    """Everything that a prediction says, times included."""
    told: dict[str, Any] = {"need": attrs.asdict(got.need), "provenance": got.provenance, "feasible": got.feasible}
    if got.feasible:
        told |= {
            "step_s": got.step_s, "exposed_s": got.exposed_s, "hidden_s": got.hidden_s, "by_kind": got.by_kind,
            "spent": got.spent, "spans": [attrs.asdict(span) for span in got.timeline.spans],
        }  # fmt: skip
    return json.dumps(told)


def scaled(by: float, *names: str) -> Callable[[GpuProfile], GpuProfile]:
    """A machine whose device memory (the rates named) is so many times as fast."""

    def turn(profile: GpuProfile) -> GpuProfile:
        faster = {n: (q := getattr(profile.memory, n)).with_value(q.value * by, "a law's") for n in names}
        return attrs.evolve(profile, memory=attrs.evolve(profile.memory, **faster))

    return turn


PAIRS = [
    ("query", "resident"), ("forecast", "resident"), ("infinigen", "resident"), ("query", "offload-sync"),
    ("forecast", "offload-sync"), ("infinigen", "offload-sync"), ("forecast", "offload-prefetch"),
    ("infinigen", "offload-prefetch"),
]  # fmt: skip
OFFLOADING = [pair for pair in PAIRS if pair[1] != "resident"]


@st.composite
def points(draw: st.DrawFn, *, pairs: list[tuple[str, str]] = PAIRS, engines: tuple[str, ...] = ("uva",)) -> Point:
    selector, runtime = draw(st.sampled_from(pairs))
    return Point(
        selector=selector, runtime=runtime, engine=draw(st.sampled_from(engines)), batch=draw(st.integers(1, 64)),
        context=draw(st.integers(1, 131072)), churn=draw(st.sampled_from([0.0, 0.03, 0.1, 0.3, 1.0])),
    )  # fmt: skip


#: What a process of its own predicts.
POINTS = (
    Point(), Point(engine="copy-engine", batch=3), Point(selector="infinigen", engine="cpu-gather"),
    Point(selector="query", runtime="resident", context=5000), Point(runtime="resident", batch=4000),
)  # fmt: skip
