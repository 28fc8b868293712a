"""One plan, two executors: what ran on this CPU and what is simulated are the same operations in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.compose import Combination
from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.selectors.recording import Recorder
from sparda_core.simulator.cpu import CpuProfile, KindCost, cost_key
from sparda_core.simulator.predict import predict
from sparda_core.simulator.profile import Price
from sparda_core.spans import Timeline
from sparda_core.work import Work, WorkContext
from tests.agreement.test_every_pair import CANNOT
from tests.agreement.worlds import SHAPE, SPEC, TOKENS, pair
from tests.simulator.scenes import cpu

PROMPT, STEPS = 90, 6
PAIRS = [(s, r) for s in SELECTORS.names() for r in RUNTIMES.names() if (s, r) not in CANNOT]
#: Enough slots that what was moved once is still there.
KEEPS: dict[str, Any] = {"policy": "lru", "slots": 41}


def ran(combination: Combination) -> Iterator[tuple[Timeline, StepFacts]]:
    """Timeline and facts of a few decode steps on this machine."""
    with combination.open(timeline=True) as session:
        row = session.add()
        session.prefill(row, TOKENS[:PROMPT])
        for token in TOKENS[PROMPT : PROMPT + STEPS]:
            result = session.decode({row: token})
            assert result.timeline is not None
            yield result.timeline, result.facts


def machine(plan: StepPlan) -> CpuProfile:
    """A made-up CPU that knows every operation of the plan; what it costs does not matter here."""
    keys = {cost_key(plan.phase, plan.selector, op.kind) for op in plan}
    cost = KindCost(fixed_s=3e-6, driver="h2d_bytes", per_unit_s=1e-9, slowdown=1.2)
    return cpu(dict.fromkeys(sorted(keys), cost), dispatch_s=1e-6, wake_s=5e-6, copy_start_s=2e-6)


def simulated(
    combination: Combination, facts: StepFacts, *, plan: StepPlan | None = None, profile: CpuProfile | None = None
) -> Timeline:
    made = plan or combination.plan()
    context = WorkContext(shape=combination.shape, spec=combination.spec, kv_bytes=8, host_kv_bytes=8)
    return predict(
        made, facts, context=context, selector=combination.selector, profile=profile or machine(made)
    ).timeline


def names(timeline: Timeline) -> dict[Lane, list[str]]:
    return {lane: [span.name for span in timeline.lane(lane)] for lane in Lane}


def planned(plan: StepPlan, facts: StepFacts) -> dict[Lane, list[str]]:
    """What the plan holds without the transfers that have nothing to move: neither executor starts one."""
    idle = {op.name for op in plan if op.kind == Kind.FETCH and not facts.misses[op.layer].any()}
    return {lane: [op.name for op in plan.lane(lane) if op.name not in idle] for lane in Lane}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Selections for `replay`: any lawful ones will do, the forced blocks."""
    path = tmp_path_factory.mktemp("recording") / "window.npz"
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="window")
    with pair("window", "resident").open_cpu() as session:
        seen: dict[int, Any] = {}
        session.on_selection = lambda view: seen.__setitem__(view.layer, view.selection)
        row = session.add()
        session.prefill(row, TOKENS[:PROMPT])
        for at, token in enumerate(TOKENS[PROMPT : PROMPT + STEPS], start=PROMPT):
            session.decode({row: token})
            recorder.add([at], [seen[layer][:, :, 0].numpy() for layer in range(SHAPE.layers)])
    recorder.recording().save(path)
    return path


@pytest.mark.parametrize("options", [{}, KEEPS], ids=["last-selection", "lru"])
@pytest.mark.parametrize(("selector", "runtime"), PAIRS, ids=str)
def test_both_executors_run_the_same_operations_in_the_same_order_on_every_lane(
    selector: str, runtime: str, options: dict[str, Any], recording: Path
) -> None:
    chosen = {} if runtime == "resident" else options
    combination = pair(selector, runtime, recording=recording, runtime_options=chosen)
    for real, facts in ran(combination):
        want = planned(combination.plan(), facts)
        assert names(real) == want
        assert names(simulated(combination, facts)) == want


def moved(selector: str, runtime: str) -> list[tuple[Combination, Timeline, StepFacts]]:
    combination = pair(selector, runtime, runtime_options=KEEPS)
    return [(combination, real, facts) for real, facts in ran(combination)]


def test_what_is_compared_has_steps_that_move_blocks_and_transfers_that_move_none() -> None:
    steps = moved("window", "offload-prefetch")
    fetches = len(steps[0][0].plan().lane(Lane.H2D))
    met = {len(real.lane(Lane.H2D)) for _, real, _ in steps}
    assert met >= {0, fetches}


def test_a_simulator_that_runs_the_plan_in_another_order_would_be_noticed() -> None:
    combination, real, facts = moved("forecast", "offload-prefetch")[0]
    ops = list(combination.plan())
    at = next(i for i, op in enumerate(ops) if op.name == "append/1")
    swapped = attrs.evolve(combination.plan(), ops=[*ops[: at - 1], ops[at], ops[at - 1], *ops[at + 1 :]])
    assert names(simulated(combination, facts)) == names(real)
    assert names(simulated(combination, facts, plan=swapped)) != names(real)


def test_a_simulator_that_runs_the_other_runtime_would_be_noticed_by_its_starts() -> None:
    # Names on a lane are the same: what differs between sync and prefetch is what the copies wait for.
    every = [moved("forecast", runtime)[0] for runtime in ("offload-prefetch", "offload-sync")]
    assert names(every[0][1]) == names(every[1][1])
    early, late = (
        {span.name: span for span in simulated(combination, facts).spans} for combination, _, facts in every
    )
    assert early["fetch/2"].start_ns < early["attend/1"].end_ns
    assert late["fetch/2"].start_ns > late["attend/1"].end_ns


@attrs.frozen(kw_only=True)
class Submits(CpuProfile):
    """A mutant that starts a transfer even where there is nothing to move."""

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        price = super().price(op, work, plan=plan, tokens=tokens)
        return attrs.evolve(price, latency_s=1e-6) if price.nothing else price


def test_a_simulator_that_starts_empty_transfers_would_be_noticed() -> None:
    combination, real, facts = moved("window", "offload-prefetch")[-1]
    fields = {field.name: getattr(machine(combination.plan()), field.name) for field in attrs.fields(CpuProfile)}
    assert names(simulated(combination, facts)) == names(real)
    assert names(simulated(combination, facts, profile=Submits(**fields))) != names(real)
