"""Prefill by the selector's choice: logits, rows and later steps are those of a CPU session, however it is cut."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from sparda_core.compose import make_selector
from sparda_core.errors import ConfigError
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES
from sparda_core.runtimes.gpu import chosen
from sparda_core.runtimes.gpu.chosen import in_blocks
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from tests.gpu.session.worlds import SHAPE, SPEC, WIDE, Pair, close, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
#: Read densely first, then by choice: the interpreter takes its time for every query. A budget is four blocks of 16.
BEFORE, CHOSEN, CHUNK = (37, 100, 30) if ON_GPU else (93, 8, 5)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("forecast", "offload-prefetch", {}), ("query", "offload-sync", {}), ("window", "resident", {}),
    ("infinigen", "offload-prefetch", {"channels": 8, "calibration_tokens": 40}),
    ("random", "offload-sync", {"seed": 3}),
]  # fmt: skip


def read(pair: Pair, tokens: list[int], chunk: int = CHUNK, row: int = 0) -> None:
    """Tokens into a row of both sessions, by the selector's choice; logits compared."""
    want = pair.cpu.prefill(row, tokens, mode="selector", chunk=chunk)
    close(pair.gpu.prefill(row, tokens, mode="selector", chunk=chunk), want)


@pytest.mark.parametrize(("selector", "runtime", "options"), CASES if ON_GPU else CASES[:3])
def test_a_prompt_read_by_choice_gives_a_cpus_logits_and_steps(
    selector: str, runtime: str, options: dict[str, Any]
) -> None:
    with Pair(selector, runtime, places=1, selector_options=options) as pair:
        pair.add(prompt(BEFORE))
        read(pair, prompt(CHOSEN, 2))
        pair.steps(8 if ON_GPU else 1)


def test_scores_and_choice_where_the_tensors_lie_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU's tensors take: operations on tensors, and the kernel that chooses."""
    with Pair("forecast", "offload-prefetch", places=1, shape=WIDE) as pair:
        pair.add(prompt(BEFORE))
        want = pair.cpu.prefill(0, prompt(CHOSEN, 2), mode="selector", chunk=CHUNK)
        for module in ("score_forecast.cpu", "topk.choose"):
            monkeypatch.setattr(f"sparda_core.kernels.{module}.on_cpu", lambda *_: False)
        close(pair.gpu.prefill(0, prompt(CHOSEN, 2), mode="selector", chunk=CHUNK), want)


def test_forecasts_of_two_layers_ahead_choose_for_those_layers() -> None:
    shape, runtime = attrs.evolve(SHAPE, layers=4), RUNTIMES.make("resident")
    selector, logits = make_selector(tiny_model(shape, lead=2), "forecast"), []
    assert selector.lead == 2
    here = CpuSession(
        tiny_model(shape, lead=2), runtime=runtime, selector=selector, spec=SPEC, options=SessionOptions(threads=1)
    )
    there = GpuSession(
        tiny_model(shape, lead=2, device=DEVICE), runtime=runtime, selector=selector, spec=SPEC,
        options=GpuOptions(tokens=160),
    )  # fmt: skip
    with here, there:
        for session in (here, there):
            row = session.add()
            session.prefill(row, prompt(BEFORE))
            logits.append(session.prefill(row, prompt(CHOSEN, 2), mode="selector", chunk=CHUNK))
    close(logits[1], logits[0])


@pytest.mark.parametrize("where", ["here", "as on a GPU"])
def test_a_prompt_read_by_choice_adds_the_bias_of_its_tokens(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    shape, options = attrs.evolve(SHAPE, token_bias=True), {"select_blocks": 2}
    with Pair(
        "nosa", "offload-sync", spec=SPEC.with_budget(5), selector_options=options, shape=shape, places=1
    ) as pair:
        pair.add(prompt(BEFORE))
        want = pair.cpu.prefill(0, prompt(CHOSEN, 2), mode="selector", chunk=CHUNK)
        if where != "here":
            for module in ("score_query.cpu", "shortlist.cpu", "topk.choose"):
                monkeypatch.setattr(f"sparda_core.kernels.{module}.on_cpu", lambda *_: False)
        close(pair.gpu.prefill(0, prompt(CHOSEN, 2), mode="selector", chunk=CHUNK), want)
        monkeypatch.undo()
        pair.steps(1)


def test_a_later_turn_reads_what_the_turn_before_and_its_steps_wrote() -> None:
    with Pair("query", "offload-sync", places=1) as pair:
        pair.add(prompt(BEFORE))
        for turn in (3, 4):
            read(pair, prompt(CHOSEN // 2, turn))
            pair.steps(1)


def test_cutting_the_queries_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = []
    for most in (chosen.MOST_SCORES, 70):
        monkeypatch.setattr(chosen, "MOST_SCORES", most)
        with Pair("query", "resident", places=1) as pair:
            pair.add(prompt(BEFORE))
            logits.append(pair.gpu.prefill(0, prompt(CHOSEN), mode="selector"))
    close(logits[1], logits[0])


def test_choosing_is_not_reading_densely() -> None:
    with Pair("window", "resident", places=1) as pair:
        pair.add(prompt(BEFORE))
        dense = pair.gpu.prefill(0, prompt(CHOSEN, 2))
        pair.gpu.crop(0, BEFORE)
        sparse = pair.gpu.prefill(0, prompt(CHOSEN, 2), mode="selector")
        assert not torch.allclose(sparse, dense, rtol=1e-3, atol=1e-3)
        with pytest.raises(ConfigError, match="mode='sparse' is unknown; known: dense, selector"):
            pair.gpu.prefill(0, prompt(3), mode="sparse")


def test_what_interrupts_it_leaves_the_row_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pair("forecast", "offload-prefetch", places=1) as pair:
        pair.add(prompt(BEFORE))
        with monkeypatch.context() as patch:
            patch.setattr(chosen, "attend_pages", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                pair.gpu.prefill(0, prompt(20, 3), mode="selector")
        assert pair.gpu.length(0) == BEFORE
        pair.steps(1)


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_blocks_of_a_row_hold_its_tokens_in_order() -> None:
    keys, values = (torch.randn(2, 21, 4, device=DEVICE) for _ in range(2))
    paged = in_blocks(keys, values, 8)
    assert paged.array.shape == (6, 2, 8, 4)
    for head in range(2):
        blocks = paged.array[paged.table[0, head].long()]
        for side, part in enumerate((keys, values)):
            assert torch.equal(blocks[:, side].reshape(-1, 4)[:21], part[head])
