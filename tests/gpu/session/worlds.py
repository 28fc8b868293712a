"""A tiny model, and the same rows in a GPU session and in the CPU session that judges it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import attrs
import numpy as np
import torch

from sparda_core.facts import StepFacts
from sparda_core.models.model import Model
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtime import Runtime
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from sparda_core.shapes import BlockSpec, ModelShape
from tests.gpu_env import DEVICE

#: The interpreter takes its time for every program of a kernel: one KV head and two layers, the second offloaded.
SHAPE = ModelShape(
    name="tiny", layers=2, hidden=32, ffn=48, q_heads=2, kv_heads=1, head_dim=32, vocab=97, context=256,
    tied_embeddings=True,
)  # fmt: skip
WIDE = attrs.evolve(SHAPE, layers=3, q_heads=4, kv_heads=2)
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)


def models(shape: ModelShape = SHAPE, *, lead: int = 1) -> tuple[Model, Model]:
    """The same random model, its Forecast of that lead, for the CPU and for where GPU code is tested."""
    return tiny_model(shape, seed=3, lead=lead), tiny_model(shape, seed=3, lead=lead, device=DEVICE)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Float32 on both sides; sums in another order."""
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4, equal_nan=True)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, SHAPE.vocab, length).tolist()  # type: ignore[no-any-return]


class Pair:
    """A GPU session and a CPU session that are told the same. Rows go by the CPU's ids; both give out the same."""

    def __init__(
        self, selector: str, runtime: str, *, spec: BlockSpec = SPEC, runtime_options: Mapping[str, Any] | None = None,
        selector_options: Mapping[str, Any] | None = None, keep_queries: int = 0, shape: ModelShape = SHAPE,
        **options: Any,
    ) -> None:  # fmt: skip
        chosen_lead = (selector_options or {}).get("lead", 1)
        here, there = models(shape, lead=chosen_lead)
        method = SELECTORS.make(selector, **(selector_options or {}))
        where: Runtime = RUNTIMES.make(runtime, **(runtime_options or {}))
        self.cpu = CpuSession(
            here, runtime=where, selector=method, spec=spec,
            options=SessionOptions(page_blocks=2, keep_queries=keep_queries, threads=1),
        )  # fmt: skip
        chosen = {"places": 4, "tokens": 160, "page_blocks": 2, **options}
        self.gpu = GpuSession(
            there, runtime=where, selector=method, spec=spec,
            options=GpuOptions.of(keep_queries=keep_queries, **chosen),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.cpu.close()
        self.gpu.close()

    def add(self, tokens: list[int]) -> int:
        row = self.cpu.add()
        assert self.gpu.add() == row
        self.prefill(row, tokens)
        return row

    def prefill(self, row: int, tokens: list[int], chunk: int = 2048) -> None:
        want = self.cpu.prefill(row, tokens, chunk=chunk)
        close(self.gpu.prefill(row, tokens, chunk=chunk), want)

    def fork(self, row: int) -> int:
        copy = self.cpu.fork(row)
        assert self.gpu.fork(row) == copy
        return copy

    def both(self) -> Iterator[CpuSession | GpuSession]:
        yield self.cpu
        yield self.gpu

    def crop(self, row: int, tokens: int) -> None:
        for session in self.both():
            session.crop(row, tokens)

    def retire(self, row: int) -> None:
        for session in self.both():
            session.retire(row)

    def step(self, tokens: Mapping[int, int]) -> dict[int, int]:
        """One step of both, compared; the greedy next token of each row."""
        want, got = self.cpu.decode(tokens), self.gpu.decode(tokens)
        close(got.logits, want.logits)
        same_facts(got.facts, want.facts)
        assert self.gpu.rows == self.cpu.rows
        assert [self.gpu.length(row) for row in self.gpu.rows] == [self.cpu.length(row) for row in self.cpu.rows]
        best = {row: int(want.logits[self.cpu.rows.index(row)].argmax()) for row in tokens}
        assert {row: token for row, token in self.gpu.tokens().items() if row in tokens} == best
        return best

    def steps(self, count: int, tokens: Mapping[int, int] | None = None) -> dict[int, int]:
        """Some steps of every row, each with the token that the step before chose."""
        now = dict(tokens) if tokens is not None else {row: 1 + row for row in self.cpu.rows}
        for _ in range(count):
            now = self.step(now)
        return now


def same_facts(got: StepFacts, want: StepFacts) -> None:
    """Count for count; what was late is a matter of clocks, and nobody looks at one on a GPU."""
    for name in ("new_tokens", "budget", "slots"):
        assert getattr(got, name) == getattr(want, name), name
    for name in ("active", "lengths", "selected", "misses", "opened", "wasted"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
