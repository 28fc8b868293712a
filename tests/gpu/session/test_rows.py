"""Rows come and go between steps as they do on a CPU; whatever fails, they are as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparda_core.errors import CapacityError, ConfigError, RowError, SpardaError
from sparda_core.plan import Op
from sparda_core.runtimes.gpu.step import DecodeStep
from sparda_core.runtimes.session import CpuSession
from tests.gpu.session.worlds import SHAPE, SPEC, Pair, close, prompt, same_facts
from tests.gpu_env import DEVICE

PAIRS: list[tuple[str, str, dict[str, object]]] = [
    ("forecast", "offload-prefetch", {"policy": "lru", "slots": 6}),
    ("query", "offload-sync", {"policy": "last-selection"}),
]
if DEVICE.type == "cuda":
    PAIRS += [("infinigen", "offload-sync", {"policy": "lru"}), ("forecast", "resident", {})]


@pytest.mark.parametrize(("selector", "runtime", "options"), PAIRS)
def test_rows_are_forked_cropped_retired_and_added_in_mid_way(
    selector: str, runtime: str, options: dict[str, object]
) -> None:
    with Pair(selector, runtime, runtime_options=options) as pair:
        first, second = pair.add(prompt(63)), pair.add(prompt(30, 1))
        copy = pair.fork(first)
        pair.step({copy: 5, second: 6})  # the first sits it out
        pair.crop(first, 40)
        pair.retire(second)  # the copy moves into its place
        fresh = pair.add(prompt(3, 2))
        for session in pair.both():
            session.reorder([fresh, copy, first])
        pair.steps(1)
        pair.prefill(copy, prompt(20, 3), chunk=7)
        pair.steps(1)


def test_a_row_that_sits_a_step_out_neither_moves_nor_counts() -> None:
    with Pair("forecast", "offload-prefetch", places=2) as pair:
        first, second = pair.add(prompt(33)), pair.add(prompt(20, 1))
        for _ in range(2):
            pair.step({second: 3})
        assert (pair.gpu.length(first), pair.gpu.length(second)) == (33, 22)
        logits = pair.gpu.last_logits()
        assert logits[0].isnan().all()
        assert not logits[1].isnan().any()
        pair.step({first: 4})


def test_an_empty_row_begins_with_a_decoded_token() -> None:
    with Pair("query", "offload-sync", places=1) as pair:
        row = pair.cpu.add()
        assert pair.gpu.add() == row
        pair.steps(2, {row: 7})


def test_steps_without_the_host_take_the_tokens_that_they_sample() -> None:
    with Pair("forecast", "offload-prefetch", places=2) as pair:
        rows = [pair.add(prompt(30)), pair.add(prompt(9, 1))]
        pair.gpu.run(3)
        tokens = {row: _greedy(row, length) for row, length in zip(rows, (30, 9), strict=True)}
        result = pair.cpu.decode(tokens)
        for _ in range(2):
            tokens = {row: int(result.logits[i].argmax()) for i, row in enumerate(rows)}
            result = pair.cpu.decode(tokens)
        tokens = {row: int(result.logits[i].argmax()) for i, row in enumerate(rows)}
        assert pair.gpu.tokens() == tokens
        same_facts(pair.gpu.last_facts(), result.facts)
        close(pair.gpu.last_logits(), result.logits)


def test_drawn_tokens_are_told_by_row_and_in_order() -> None:
    """As many steps one by one, and a row that retires so that places and rows differ."""
    steps = 16 if DEVICE.type == "cuda" else 2
    with Pair("forecast", "offload-prefetch", places=3) as pair:
        gone, kept = pair.add(prompt(3)), pair.add(prompt(30, 1))
        pair.retire(gone)
        pair.add(prompt(9, 2))
        first = pair.gpu.tokens()
        drawn = pair.gpu.draw(steps)
        assert list(drawn) == list(pair.gpu.rows)
        assert {row: tokens[-1] for row, tokens in drawn.items()} == pair.gpu.tokens()
        wanted = {row: [token] for row, token in first.items()}
        for _ in range(steps):
            logits = pair.cpu.decode({row: tokens[-1] for row, tokens in wanted.items()}).logits
            for i, row in enumerate(pair.cpu.rows):
                wanted[row].append(int(logits[i].argmax()))
        assert {row: tokens[1:] for row, tokens in wanted.items()} == drawn
        with pytest.raises(CapacityError, match=f"row {kept} of .* cannot grow by 1000000000"):
            pair.gpu.draw(10**9)


def _greedy(row: int, length: int) -> int:
    """What prefill of the prompt that the row read chooses."""
    with Pair("window", "resident", places=1) as other:
        logits = other.cpu.prefill(other.cpu.add(), prompt(length, row))
    return int(logits.argmax())


def test_what_a_selector_learnt_of_a_prompt_goes_with_the_prompt() -> None:
    # The rotation is made from two blocks; the others count as sums, of which a crop forgets two.
    learning = {"channels": 4, "calibration_tokens": 32}
    with Pair("infinigen", "offload-prefetch", selector_options=learning, places=1) as pair:
        row = pair.add(prompt(90))
        pair.crop(row, 70)
        pair.step({row: 3})
        pair.prefill(row, prompt(45, 4), chunk=20)  # dimensions are chosen anew
        pair.step({row: 3})
        pair.retire(row)
        row = pair.add(prompt(70, 2))  # in the same place
        pair.step({row: 3})
        if DEVICE.type == "cuda":  # long enough to have blocks to choose from
            pair.retire(row)
            row = pair.cpu.add()
            assert pair.gpu.add() == row
            pair.steps(100, {row: 3})


@pytest.mark.parametrize("kind", ["fetch", "attend", "head"])
def test_steps_that_fail_in_mid_way_leave_rows_as_they_were(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two steps is interrupted: both are undone."""
    binding, left = f"_{kind}", [3]  # operations of that kind until one fails; there are one or two a step
    whole = getattr(DecodeStep, binding)

    def fragile(step: DecodeStep, op: Op) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise SpardaError("the link is cut")
        whole(step, op)

    with Pair("forecast", "offload-prefetch", runtime_options={"policy": "lru"}, places=1, graph=False) as pair:
        row = pair.add(prompt(46))
        pair.steps(1)
        left[0] = 3 if kind == "attend" else 2
        monkeypatch.setattr(DecodeStep, binding, fragile)
        pair.gpu._machinery._replays.reset()
        with pytest.raises(SpardaError, match="link is cut"):
            pair.gpu.run(2, {row: 3})
        monkeypatch.undo()
        assert pair.gpu.length(row) == 47
        got, want = pair.gpu.decode({row: 3}), pair.cpu.decode({row: 3})
        close(got.logits, want.logits)


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    with Pair("window", "offload-prefetch", places=1, tokens=64) as pair:
        row = pair.add(prompt(62))
        with pytest.raises(CapacityError, match=r"all 1 places.*more places"):
            pair.gpu.add()
        with pytest.raises(CapacityError, match=r"cannot grow by 3.*rows of this session hold 64"):
            pair.gpu.prefill(row, [1, 2, 3])
        with pytest.raises(CapacityError, match="cannot grow by 3"):
            pair.gpu.run(3)
        with pytest.raises(ConfigError, match="mode='sparse' is unknown; known: dense, selector"):
            pair.gpu.prefill(row, [1], mode="sparse")
        with pytest.raises(CapacityError, match="cannot grow by 3"):
            pair.gpu.prefill(row, [1, 2, 3], mode="selector")
        with pytest.raises(RowError, match="row=9"):
            pair.gpu.decode({9: 1})
        with pytest.raises(ConfigError, match="ids between 0 and 96"):
            pair.gpu.decode({row: SHAPE.vocab})
        with pytest.raises(ConfigError, match="from 0 to the row's length 62"):
            pair.gpu.crop(row, 63)
        pair.steps(2)
    with pytest.raises(SpardaError, match="closed"):
        pair.gpu.add()
    pair.gpu.close()


def test_a_row_moves_from_a_cpu_to_a_gpu_and_back() -> None:
    with Pair("infinigen", "offload-prefetch", keep_queries=64) as pair:
        row = pair.add(prompt(40))
        token = pair.steps(1)[row]
        there = pair.cpu.snapshot(row)
        back = pair.gpu.snapshot(row)
        for name in ("keys", "values", "queries"):
            np.testing.assert_allclose(getattr(back, name), getattr(there, name), rtol=2e-4, atol=2e-4)
        adopted = pair.gpu.adopt(there)
        assert pair.cpu.adopt(back) == adopted
        pair.steps(2, {row: token, adopted: token})


@pytest.mark.parametrize("budget", [SPEC.forced, 5])
def test_the_budget_changes_between_steps(budget: int) -> None:
    with Pair("query", "offload-sync", places=2) as pair:
        pair.add(prompt(70))
        pair.steps(1)
        for session in pair.both():
            session.set_budget(budget)
        empty_slots(pair.cpu)
        pair.steps(1)


def empty_slots(session: CpuSession) -> None:
    """Fewer or more slots are new ones on a GPU, and empty: let the CPU's be so too."""
    for row in session.rows:
        session.tiers.refresh(row, session.length(row), stale_from=0)


def test_what_a_row_decoded_is_known_under_another_budget() -> None:
    with Pair("infinigen", "offload-prefetch", places=2) as pair:
        row = pair.add(prompt(62))
        token = pair.steps(3)
        copy = pair.fork(row)
        for session in pair.both():
            session.set_budget(3)
        empty_slots(pair.cpu)
        token = pair.steps(2, {row: token[row], copy: 5})
        pair.crop(copy, 50)
        pair.steps(1, {**token, copy: 7})


def test_a_crop_of_what_was_decoded_that_is_interrupted_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pair("infinigen", "offload-prefetch", places=1) as pair:
        row = pair.add(prompt(40))
        pair.steps(3)
        machinery = pair.gpu.machinery

        def interrupted(place: int, tokens: int) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(machinery, "crop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.gpu.crop(row, 41)
        pair.cpu.crop(row, 41)
        pair.steps(1)


def test_a_prompt_that_is_taken_back_in_two_attempts_leaves_dimensions_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is cut short after its dimensions were handed over, and so is what takes it back."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Pair("infinigen", "offload-prefetch", selector_options={"channels": 2}, places=1) as pair:
        row = pair.add(prompt(40))
        scorer = pair.gpu.machinery.half._scorer  # type: ignore[attr-defined]
        before = scorer._projection.clone()
        with monkeypatch.context() as patch:
            for name in ("sample_first", "crop"):
                patch.setattr(pair.gpu.machinery, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.gpu.prefill(row, prompt(60, seed=5))
        assert not torch.equal(scorer._projection, before)
        assert pair.gpu.length(row) == 40
        assert torch.equal(scorer._projection, before)
        pair.steps(1)


@pytest.mark.parametrize("name", ["move", "vacate"])
def test_a_row_that_goes_in_two_attempts_is_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Pair("query", "offload-sync", places=2) as pair:
        gone, kept = pair.add(prompt(20)), pair.add(prompt(40))
        with monkeypatch.context() as patch:
            patch.setattr(pair.gpu.machinery, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.gpu.retire(gone)
        pair.cpu.retire(gone)
        assert pair.gpu.rows == (kept,)
        assert pair.gpu.used_bytes["host"] == pair.cpu.used_bytes["host"]
        pair.steps(1)


def test_a_budget_below_the_forced_blocks_is_refused_and_the_session_goes_on() -> None:
    with Pair("query", "offload-sync", places=1) as pair:
        pair.add(prompt(40))
        with pytest.raises(ConfigError, match="budget=2"):
            pair.gpu.set_budget(2)
        pair.steps(1)
