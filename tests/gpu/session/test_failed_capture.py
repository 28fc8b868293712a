"""A capture that fails leaves a process that can go on: the same session, others, and torch's random numbers.

Without a GPU nothing is captured: the failures then come from steps issued one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparda_core.errors import SpardaError
from sparda_core.runtimes.gpu.graphs import Captured
from tests.gpu.session.worlds import Pair, close, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"


def _raises(*_: Any) -> None:
    raise SpardaError("cut in mid-step")


def _waits(*_: Any) -> None:
    """What no capture allows: CUDA ends it there and then."""
    torch.zeros(1, device=DEVICE).item()
    _raises()


def _late(whole: Callable[..., None]) -> Callable[..., None]:
    """Does its work, then raises: the copy lane holds a kernel that nobody waits for."""

    def after(*given: Any) -> None:
        whole(*given)
        _raises()

    return after


def break_copy(pair: Pair, how: Callable[..., None]) -> Callable[[], None]:
    engine: Any = pair.gpu.machinery.engine
    engine.fetch = how
    return lambda: engine.__dict__.pop("fetch") and None


def break_selector(pair: Pair, how: Callable[..., None]) -> Callable[[], None]:
    half: Any = pair.gpu.machinery.half
    half.observe = how
    return lambda: half.__dict__.pop("observe") and None


FAILURES = {
    "copy": lambda pair: break_copy(pair, _raises),
    "after a copy": lambda pair: break_copy(pair, _late(pair.gpu.machinery.engine.fetch)),
    "selector": lambda pair: break_selector(pair, _raises),
    "selector that waits": lambda pair: break_selector(pair, _waits),
    "copy that waits": lambda pair: break_copy(pair, _waits),
}


@pytest.mark.parametrize("where", FAILURES if ON_GPU else ["after a copy"])
def test_the_next_step_is_captured_as_if_nothing_had_been(where: str) -> None:
    with Pair("forecast", "offload-prefetch", runtime_options={"policy": "lru"}, places=2) as pair:
        row = pair.add(prompt(47))
        pair.steps(1)
        for _ in range(2 if ON_GPU else 1):
            mend = FAILURES[where](pair)
            with pytest.raises((SpardaError, RuntimeError)):
                pair.gpu.decode({row: 3})
            mend()
            torch.randn(4, device=DEVICE)
        assert pair.gpu.length(row) == 48
        got, want = pair.gpu.decode({row: 3}), pair.cpu.decode({row: 3})
        close(got.logits, want.logits)
        if ON_GPU:
            pair.steps(3)
            replays = pair.gpu.machinery._replays
            assert isinstance(replays, Captured)
            assert len(replays.captured) == 1


@pytest.mark.gpu
def test_memory_that_a_failed_capture_took_goes_back() -> None:
    with Pair("forecast", "offload-prefetch", places=1) as pair:
        row = pair.add(prompt(47))
        pair.steps(1)
        taken = []
        for _ in range(6):
            mend = break_copy(pair, _waits)
            with pytest.raises((SpardaError, RuntimeError)):
                pair.gpu.decode({row: 3})
            mend()
            torch.cuda.synchronize()
            taken.append(torch.cuda.memory_allocated())
        assert taken[-1] == taken[1]
