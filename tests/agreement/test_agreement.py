"""Every runtime, driven with the same random operations, answers as the dense model does."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.models.tiny import tiny_model
from sparda_core.testing import Stage
from sparda_core.testing.machine import run_machine
from tests.agreement.worlds import OPTIONS, SHAPE, SPEC, shape_of
from tests.profiles import share

RUNTIMES: dict[str, tuple[str, dict[str, Any]]] = {
    "resident": ("resident", {}),
    "sync": ("offload-sync", {}),
    "sync-lru": ("offload-sync", {"policy": "lru", "slots": 8}),
    "prefetch": ("offload-prefetch", {}),
    "prefetch-lru": ("offload-prefetch", {"policy": "lru", "slots": 9}),
    "prefetch-resident-2": ("offload-prefetch", {"resident_layers": 2}),
}
#: Selector -> the runtimes that it fits with. A number behind it is the lead of the model's Forecast.
SELECTORS = {
    "forecast": tuple(RUNTIMES),
    "forecast 2": tuple(RUNTIMES),
    "random": tuple(RUNTIMES),
    "window": tuple(RUNTIMES),
    "infinigen": tuple(RUNTIMES),
    "query": ("resident", "sync", "sync-lru"),
    "oracle": ("resident", "sync", "sync-lru"),
    "nosa": ("resident", "sync", "sync-lru"),
    "nosa-forecast": tuple(RUNTIMES),
}


@pytest.mark.parametrize("selector", SELECTORS)
def test_all_runtimes_agree_with_the_dense_model(selector: str) -> None:
    """Same selections, same logits, counts and tiers that hold, under any order of operations."""
    biased = shape_of(selector).token_bias
    failed = run_machine(
        lambda: stage_of(selector), budgets=(SPEC.forced + biased, 8), examples=share(3), steps=12
    )  # fmt: skip
    assert failed is None, f"{failed[1]}\nin the story {failed[0].story}"


def stage_of(selector: str) -> Stage:
    """A session of every runtime that fits, told the same; `resident`, the first, judges."""
    name, _, lead = selector.partition(" ")
    model = tiny_model(shape_of(name), seed=1, dtype=torch.float64, lead=int(lead or 1))
    sessions = {}
    for label in SELECTORS[selector]:
        runtime, options = RUNTIMES[label]
        pair = compose(
            model, name, runtime, spec=SPEC, runtime_options=options, selector_options=OPTIONS.get(name), page_blocks=2,
        )  # fmt: skip
        sessions[label] = pair.open_cpu(threads=1)
    return Stage(model, sessions, spec=SPEC, tolerance=1e-9)


@pytest.mark.parametrize("waits", ["kept", "dropped"])
def test_the_machine_notices_a_dropped_wait(monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    """The check can fail: where no block moves before somebody waits, a plan without waits answers wrong."""
    from sparda_core.runtimes import copy_lane, executor

    wanted, over = threading.Event(), threading.Event()
    run, settle = copy_lane.CopyJob.run, copy_lane.CopyTicket.settle

    def move_late(job: copy_lane.CopyJob, start: int, stop: int) -> None:
        assert wanted.wait(60), "nobody waited for the copy"
        run(job, start, stop)

    def settle_opens(ticket: copy_lane.CopyTicket) -> None:
        wanted.set()
        settle(ticket)
        if not over.is_set():
            wanted.clear()

    monkeypatch.setattr(copy_lane.CopyJob, "run", move_late)
    monkeypatch.setattr(copy_lane.CopyTicket, "settle", settle_opens)
    if waits == "dropped":
        monkeypatch.setattr(executor.Executor, "_await", lambda *_: None)
    model = tiny_model(SHAPE, seed=0, dtype=torch.float64, forecast=True)
    spec = attrs.evolve(SPEC, budget=6)
    answers = []
    for runtime in ("resident", "offload-prefetch"):
        with compose(model, "random", runtime, spec=spec).open() as session:
            row = session.add()
            session.prefill(row, [i % 23 for i in range(120)])
            answers.append(torch.stack([session.decode({row: i}).logits[0] for i in range(8)]))
            over.set()  # closing joins the lane's thread: let what is queued pass
            wanted.set()
        over.clear()
        wanted.clear()
    assert torch.allclose(answers[0], answers[1]) == (waits == "kept")
