"""A GPU session on the stage that judges runtimes: one story, told to it, to its CPU twin and to a dense model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from sparda_core.testing import Stage
from sparda_core.testing.runtime_laws import RuntimeBroken
from tests.gpu_env import DEVICE

# isort: split
from tests.gpu.session.worlds import SPEC, models, prompt

STORY: list[tuple[Any, ...]] = [
    ("add",), ("prefill", 0, prompt(70), 33), ("append", 0, prompt(5, 1), 3, 0), ("decode", {0: 3}, 0), ("fork", 0),
    ("decode", {0: 5, 1: 9}, 0),
    ("crop", 0, 30), ("reorder", [1, 0]), ("decode", {1: 2}, 0), ("refused", "unknown row", 1),
    ("refused", "incomplete order", 1), ("prefill", 0, prompt(5), 2), ("decode", {0: 1, 1: 1}, 0), ("retire", 1),
    ("decode", {0: 4}, 0), ("set_budget", 3), ("decode", {0: 6}, 0),
]  # fmt: skip


#: Interpreted, a step takes a second, and the twins' plans are told apart elsewhere.
RUNTIME_NAMES: tuple[str, ...] = ("offload-prefetch", "offload-sync", "resident")
if DEVICE.type == "cpu":
    RUNTIME_NAMES, STORY = RUNTIME_NAMES[:1], [*STORY[:8], *STORY[9:11], *STORY[-4:]]


@pytest.fixture(params=RUNTIME_NAMES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    here, there = models()
    runtime, selector = RUNTIMES.make(request.param), SELECTORS.make("random", seed=4)
    options = SessionOptions(page_blocks=2, threads=1)
    stage = Stage(
        here,
        {
            "judge": CpuSession(
                here, runtime=RUNTIMES.make("resident"), selector=selector, spec=SPEC, options=options
            ),
            "twin": CpuSession(here, runtime=runtime, selector=selector, spec=SPEC, options=options),
            "gpu": GpuSession(
                there, runtime=runtime, selector=selector, spec=SPEC,
                options=GpuOptions(places=3, tokens=160, page_blocks=2),
            ),
        },
        spec=SPEC, tolerance=5e-4, twins={"gpu": "twin"},
    )  # fmt: skip
    yield stage
    stage.close()


def test_a_gpu_session_keeps_the_laws_of_a_story(stage: Stage) -> None:
    stage.play(STORY)
    assert stage.sessions["gpu"].rows == (0,)


def test_the_stage_notices_a_gpu_session_that_goes_astray(stage: Stage) -> None:
    stage.play(STORY[:2])
    stage.sessions["gpu"].crop(0, 69)
    with pytest.raises(RuntimeBroken, match="row 0 has"):
        stage.hold()
