"""Every runtime, driven with the same random operations, answers as the dense model does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sparda_core.compose import compose
from sparda_core.layer_view import LayerView
from sparda_core.models.tiny import tiny_model
from tests.agreement.dense_model import DenseRow
from tests.agreement.worlds import OPTIONS, SHAPE, SPEC, shape_of

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
MOST_ROWS = 4
PROMPTS = st.lists(st.integers(0, SHAPE.vocab - 1), min_size=1, max_size=45)


class _Machine(RuleBasedStateMachine):
    """Drives one session per runtime, and a DenseRow per row."""

    selector = "forecast"

    @initialize(seed=st.integers(0, 3))
    def open(self, seed: int) -> None:
        selector, _, lead = self.selector.partition(" ")
        self.model = tiny_model(shape_of(selector), seed=seed, dtype=torch.float64, lead=int(lead or 1))
        self.sessions: dict[str, Any] = {}
        self.chosen: dict[str, dict[int, torch.Tensor]] = {}
        for name in SELECTORS[self.selector]:
            runtime, options = RUNTIMES[name]
            pair = compose(
                self.model, selector, runtime, spec=SPEC, runtime_options=options,
                selector_options=OPTIONS.get(selector), page_blocks=2,
            )  # fmt: skip
            session = self.sessions[name] = pair.open_cpu()
            self.chosen[name] = {}
            session.on_selection = self.keeper(name)
        self.dense: dict[int, DenseRow] = {}

    def keeper(self, name: str) -> Callable[[LayerView], None]:
        def keep(view: LayerView) -> None:
            assert view.selection is not None
            self.chosen[name][view.layer] = view.selection

        return keep

    def each(self, call: Any) -> Any:
        return {name: call(session) for name, session in self.sessions.items()}

    def agreed(self, outcomes: dict[str, Any]) -> Any:
        first = next(iter(outcomes.values()))
        assert all(outcome == first for outcome in outcomes.values()), outcomes
        return first

    def row(self, pick: int) -> int:
        return list(self.dense)[pick % len(self.dense)]

    @precondition(lambda self: len(self.dense) < MOST_ROWS)
    @rule()
    def add(self) -> None:
        self.dense[self.agreed(self.each(lambda session: session.add()))] = DenseRow(self.model.decoder, SPEC.block)

    @precondition(lambda self: self.dense)
    @rule(pick=st.integers(0, 9), tokens=PROMPTS, chunk=st.integers(1, 50))
    def prefill(self, pick: int, tokens: list[int], chunk: int) -> None:
        row = self.row(pick)
        want = self.dense[row].append(tokens, [None] * SHAPE.layers)
        for logits in self.each(lambda session: session.prefill(row, tokens, chunk=chunk)).values():
            torch.testing.assert_close(logits, want)

    @precondition(lambda self: self.dense)
    @rule(data=st.data(), steps=st.integers(1, 10))
    def decode(self, data: st.DataObject, steps: int) -> None:
        active = data.draw(st.lists(st.sampled_from(list(self.dense)), min_size=1, unique=True))
        for _ in range(steps):
            tokens = {row: data.draw(st.integers(0, 22)) for row in active}
            results = self.each(methodcaller("decode", tokens))
            self.check_selections()
            for name, result in results.items():
                self.check_logits(name, result.logits, tokens)
                self.check_counts(name, result.facts)

    def check_selections(self) -> None:
        first = next(iter(self.chosen.values()))
        for name, chosen in self.chosen.items():
            for layer in range(SHAPE.layers):
                assert torch.equal(chosen[layer], first[layer]), f"{name}: layer {layer}"

    def check_logits(self, name: str, logits: torch.Tensor, tokens: dict[int, int]) -> None:
        last = name == next(reversed(self.sessions))
        order = [row for row in self.dense if row in tokens]
        for at, row in enumerate(self.dense):
            if row not in tokens:
                assert torch.isnan(logits[at]).all(), f"{name}: row {row} sat the step out"
                continue
            dense = self.dense[row] if last else self.dense[row].fork()
            chosen = [self.chosen[name][layer][order.index(row), :, 0] for layer in range(SHAPE.layers)]
            want = dense.append([tokens[row]], chosen)
            torch.testing.assert_close(logits[at], want, msg=lambda text: f"{name}: {text}")

    def check_counts(self, name: str, facts: Any) -> None:
        assert facts.lengths.tolist() == [
            self.sessions[name].length(row) if facts.active[i] else 0 for i, row in enumerate(self.dense)
        ]
        assert np.array_equal(facts.hits + facts.misses, facts.selected)
        resident = self.sessions[name].plan.resident_layers
        assert not facts.misses[:resident].any()
        assert not facts.wasted.any(), "a selected block is always attended to in the step that moved it"

    @precondition(lambda self: self.dense and len(self.dense) < MOST_ROWS)
    @rule(pick=st.integers(0, 9))
    def fork(self, pick: int) -> None:
        row = self.row(pick)
        self.dense[self.agreed(self.each(lambda session: session.fork(row)))] = self.dense[row].fork()

    @precondition(lambda self: self.dense)
    @rule(pick=st.integers(0, 9), share=st.floats(0, 1))
    def crop(self, pick: int, share: float) -> None:
        row = self.row(pick)
        tokens = int(self.dense[row].tokens * share)
        self.each(lambda session: session.crop(row, tokens))
        self.dense[row].crop(tokens)

    @precondition(lambda self: self.dense)
    @rule(pick=st.integers(0, 9))
    def retire(self, pick: int) -> None:
        row = self.row(pick)
        self.each(lambda session: session.retire(row))
        del self.dense[row]

    @precondition(lambda self: len(self.dense) > 1)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(list(self.dense)))
        self.each(lambda session: session.reorder(order))
        self.dense = {row: self.dense[row] for row in order}

    @rule(budget=st.integers(SPEC.forced, 8))
    def set_budget(self, budget: int) -> None:
        # The two-stage choice must have room for its first stage.
        most = max(budget, SPEC.forced + 1) if shape_of(self.selector).token_bias else budget
        self.each(lambda session: session.set_budget(most))

    @invariant()
    def rows_and_lengths_agree(self) -> None:
        for session in getattr(self, "sessions", {}).values():
            assert session.rows == tuple(self.dense)
            assert [session.length(row) for row in session.rows] == [dense.tokens for dense in self.dense.values()]

    def teardown(self) -> None:
        for session in getattr(self, "sessions", {}).values():
            session.close()


@pytest.mark.parametrize("selector", SELECTORS)
def test_all_runtimes_agree_with_the_dense_model(selector: str) -> None:
    """Same selections, same logits, counts that add up, under any order of operations."""
    machine = type(f"Machine_{selector}", (_Machine,), {"selector": selector})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=20, deadline=None))


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
