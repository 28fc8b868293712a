"""Lanes made late at random change nothing, bit for bit; with a wait dropped from the plan they change the answer.

Without a GPU there is one lane, which cannot race: there these tests only show that they run.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from sparda_core.plan import Kind, Op, StepPlan
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.executor import pieces_of
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from tests.gpu.session.spin import Spins
from tests.gpu.session.worlds import SHAPE, SPEC, WIDE, models, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
LENGTHS, STEPS, ROUNDS = ((205, 61), 24, 4) if ON_GPU else ((70,), 1, 1)
PREFETCH, SYNC, QUERY_SYNC = ("forecast", "offload-prefetch"), ("forecast", "offload-sync"), ("query", "offload-sync")
PAIRS = [PREFETCH, SYNC, QUERY_SYNC, ("infinigen", "offload-prefetch")]
#: Launches of the copy kernel in captured steps: one a layer, or one for all.
LAUNCHES = [(True, "layer"), (True, "step"), (False, "layer")] if ON_GPU else [(False, "layer")]

#: Tokens and logits after every so many steps.
Answer = list[tuple[dict[int, int], torch.Tensor]]


def decoded(
    selector: str, runtime: str, *, graph: bool, copies: str = "layer", spins: Spins | None = None, mutant: Any = None,
    engine: str = "uva",
) -> Answer:  # fmt: skip
    """What a session answers whose operations are delayed by `spins`, under a plan changed by `mutant`."""
    with pytest.MonkeyPatch.context() as patch:
        if spins is not None:
            patch.setattr(
                "sparda_core.runtimes.gpu.machinery.pieces_of",
                lambda plan, table, lanes, **how: pieces_of(plan, spins.around(table), lanes, **how),
            )
        session = GpuSession(
            models(WIDE if ON_GPU else SHAPE)[1], runtime=RUNTIMES.make(runtime, engine=engine),
            selector=SELECTORS.make(selector), spec=SPEC.with_budget(7 if ON_GPU else 4),
            options=GpuOptions(places=2, tokens=400, page_blocks=2, graph=graph and ON_GPU, copy_launch=copies),
        )  # fmt: skip
        with session:
            if mutant is not None:
                session.machinery.plan = mutant(session.plan)
            for seed, length in enumerate(LENGTHS):
                session.prefill(session.add(), prompt(length, seed))
            return [answer(session) for _ in range(ROUNDS)]


def answer(session: GpuSession) -> tuple[dict[int, int], torch.Tensor]:
    session.run(STEPS)
    return session.tokens(), session.last_logits()


def same(got: Answer, want: Answer) -> bool:
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("graph", "copies"), LAUNCHES)
@pytest.mark.parametrize(("selector", "runtime"), PAIRS if ON_GPU else PAIRS[:1])
def test_lanes_that_are_late_at_random_change_nothing(
    selector: str, runtime: str, copies: str, *, graph: bool
) -> None:  # fmt: skip
    want = decoded(selector, runtime, graph=graph)
    for seed in range(3 if ON_GPU else 1):
        spins = Spins(seed)
        got = decoded(selector, runtime, graph=graph, copies=copies, spins=spins)
        assert same(got, want), f"seed {seed}: {spins.delayed}"
        assert any(spins.delayed.values())


@pytest.mark.parametrize("engine", ["copy-engine", "cpu-gather"])
@pytest.mark.parametrize("graph", [True, False] if ON_GPU else [False])
@pytest.mark.parametrize(("selector", "runtime"), [PREFETCH, QUERY_SYNC])
def test_nor_do_they_where_the_host_reads_each_list_in_mid_step(
    selector: str, runtime: str, engine: str, *, graph: bool
) -> None:  # fmt: skip
    """Against a copy kernel, which reads the list by itself: the host must not read it before the diff has ended, and
    what it gathers into must not be written again before it has been copied.
    """
    want = decoded(selector, runtime, graph=graph)
    for seed in range(2 if ON_GPU else 1):
        spins = Spins(seed)
        assert same(decoded(selector, runtime, graph=graph, engine=engine, spins=spins), want)
        assert any(spins.delayed.values())


def attend_without_fetch(plan: StepPlan) -> StepPlan:
    """Attention does not wait for its blocks."""
    return _without(plan, Kind.ATTEND, Kind.FETCH)


def fetch_without_list(plan: StepPlan) -> StepPlan:
    """A copy waits for nothing, so not for its list; the first one still does, or its lane would not be captured."""
    first = next(op for op in plan if op.kind == Kind.FETCH)
    return _without(plan, Kind.FETCH, "", keep=first)


def _without(plan: StepPlan, kind: str, waited: str, keep: Op | None = None) -> StepPlan:
    return attrs.evolve(plan, ops=[
        attrs.evolve(op, after=tuple(name for name in op.after if not name.startswith(waited)))
        if op.kind == kind and op != keep else op
        for op in plan
    ])  # fmt: skip


#: Pair, what is dropped, and what must be late for it to show. A Forecast's list is ready a layer before a copy that
#: waits for its own layer: there, nothing shows.
MUTANTS = [
    *((pair, attend_without_fetch, Kind.FETCH) for pair in (PREFETCH, SYNC, QUERY_SYNC)),
    *((pair, fetch_without_list, Kind.DIFF) for pair in (PREFETCH, QUERY_SYNC)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(("pair", "mutant", "late"), MUTANTS)
def test_a_dropped_wait_changes_the_answer(pair: tuple[str, str], mutant: Any, late: str, *, graph: bool) -> None:
    selector, runtime = pair
    want = decoded(selector, runtime, graph=graph)
    assert same(decoded(selector, runtime, graph=graph, spins=Spins(0, only=[late])), want)
    assert not same(decoded(selector, runtime, graph=graph, spins=Spins(0, only=[late]), mutant=mutant), want)


@pytest.mark.parametrize(("pair", "mutant"), [(pair, mutant) for pair, mutant, _ in MUTANTS])
def test_the_mutants_drop_a_wait_and_nothing_else(pair: tuple[str, str], mutant: Any) -> None:
    selector, runtime = pair
    plan = RUNTIMES.make(runtime).decode_plan(shape=WIDE, spec=SPEC, selector=SELECTORS.make(selector))
    lost = [(a, b) for a, b in zip(plan, mutant(plan), strict=True) if a != b]
    assert lost
    for before, after in lost:
        assert len(before.after) == len(after.after) + 1
        assert attrs.evolve(before, after=after.after) == after
