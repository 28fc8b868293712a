"""Every runtime, policy and engine serves any selections, however rows come and go."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.compose import compose  # isort: skip
from sparda_core.errors import CapacityError
from sparda_core.models.tiny import tiny_model
from sparda_core.policy import LAST_SELECTION, POLICIES
from sparda_core.registry import RUNTIMES
from sparda_core.runtimes.gpu.engines import ENGINES, Uva
from sparda_core.testing import RUNTIME_LAWS, check_runtime
from sparda_core.testing.check_runtime import STAGE_SHAPE, STAGE_SPEC
from tests.profiles import share

LRU: dict[str, Any] = {"policy": "lru", "slots": 8}
SCORE: dict[str, Any] = {"policy": "score", "slots": 8}
#: Label -> runtime, its options, and those of its sessions.
CPU: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "resident": ("resident", {}, {}),
    "sync": ("offload-sync", {}, {}),
    "sync-roomy": ("offload-sync", {"slots": 9}, {}),
    "sync-lru": ("offload-sync", LRU, {}),
    "sync-score": ("offload-sync", SCORE, {}),
    "prefetch": ("offload-prefetch", {}, {}),
    "prefetch-lru": ("offload-prefetch", LRU, {}),
    "prefetch-score": ("offload-prefetch", SCORE, {}),
    "prefetch-half": ("offload-prefetch", {"resident_layers": 2, **LRU}, {}),
    # A step's misses take longer than the step: every layer waits for its own.
    "prefetch-late": ("offload-prefetch", {}, {"link_bytes_per_s": 2e7}),
    # A host store for two short rows: most prompts are refused, and rows are as they were.
    "prefetch-full": ("offload-prefetch", LRU, {"host_limit_bytes": 64 << 10}),
}


def test_every_registered_runtime_is_judged() -> None:
    assert {runtime for runtime, _, _ in CPU.values()} == set(RUNTIMES.names())
    assert {runtime for runtime, _, _, _ in GPU.values()} == set(RUNTIMES.names())


def test_every_policy_is_judged_under_every_runtime_that_offloads_and_every_engine_of_a_gpu() -> None:
    made = [RUNTIMES.make(runtime, **options) for runtime, options, _ in CPU.values()]
    offloading = {runtime.name for runtime in made if runtime.offloads}
    judged = {(runtime.name, runtime.policy) for runtime in made if runtime.offloads}
    assert judged == set(itertools.product(offloading, POLICIES))
    assert {options.get("policy", LAST_SELECTION) for _, options, _, _ in GPU.values()} == set(POLICIES)
    assert {options.get("engine", Uva.name) for _, options, _, _ in GPU.values()} == set(ENGINES)


@pytest.mark.parametrize("label", CPU)
def test_a_runtime_keeps_every_law_whatever_is_selected(label: str) -> None:
    runtime, options, session = CPU[label]
    verdict = check_runtime(
        RUNTIMES.make(runtime, **options), examples=share(2), steps=12, session_options=session
    )  # fmt: skip
    assert verdict.held == tuple(RUNTIME_LAWS)
    assert verdict.trials >= share(2)


@pytest.mark.parametrize(("runtime", "selector"), [("resident", "dense"), ("offload-prefetch", "window")])
def test_a_runtime_is_judged_under_the_cut_that_a_selector_asks_for(runtime: str, selector: str) -> None:
    story: list[tuple[Any, ...]] = [
        ("add",), ("prefill", 0, [i % 23 for i in range(140)], 33), *(("decode", {0: i}, 0) for i in range(5)),
    ]  # fmt: skip
    assert "same-answer" in check_runtime(runtime, selector=selector, story=story).held
    check_runtime(runtime, selector=selector, examples=1, steps=4)


def test_a_full_host_store_refuses_and_the_rows_go_on() -> None:
    """The label above means what it says: this story meets the limit."""
    runtime, options, session = CPU["prefetch-full"]
    pair = compose(
        tiny_model(STAGE_SHAPE, dtype=torch.float64), "random", runtime, spec=STAGE_SPEC, runtime_options=options,
        page_blocks=2, **session,
    )  # fmt: skip
    prompts: list[tuple[Any, ...]] = [("prefill", row, [1 + row] * 60, 20) for row in range(3)]
    with pair.open_cpu() as small:
        rows = [small.add() for _ in prompts]
        small.prefill(rows[0], prompts[0][2])
        small.prefill(rows[1], prompts[1][2])
        with pytest.raises(CapacityError, match="tier='host'"):
            small.prefill(rows[2], prompts[2][2])
    steps = [("decode", {0: 1, 1: 2, 2: 3}, seed) for seed in range(3)]
    story = [("add",), ("add",), ("add",), *prompts, *steps, ("retire", 0), ("prefill", 2, [5] * 20, 7)]
    check_runtime(RUNTIMES.make(runtime, **options), story=story, session_options=session)


#: Label -> runtime, its options, the selector, and options of a GPU session.
GPU: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "resident": ("resident", {}, "query", {}),
    "dense": ("resident", {}, "dense", {}),
    "sync-query": ("offload-sync", {}, "query", {}),
    "sync-lru-infinigen": ("offload-sync", LRU, "infinigen", {}),
    "prefetch-forecast": ("offload-prefetch", {}, "forecast", {}),
    "prefetch-random": ("offload-prefetch", {}, "random", {}),
    "prefetch-lru": ("offload-prefetch", LRU, "random", {}),
    "prefetch-score": ("offload-prefetch", SCORE, "random", {}),
    "prefetch-nosa": ("offload-prefetch", {}, "nosa-forecast", {}),
    "prefetch-eager": ("offload-prefetch", {}, "random", {"graph": False}),
    "prefetch-step": ("offload-prefetch", {}, "random", {"copy_launch": "step"}),
    "copy-engine": ("offload-prefetch", {"engine": "copy-engine"}, "random", {}),
    "cpu-gather": ("offload-sync", {"engine": "cpu-gather"}, "random", {}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("label", GPU)
def test_a_runtime_on_a_gpu_answers_and_counts_as_on_a_cpu(label: str) -> None:
    runtime, options, selector, session = GPU[label]
    verdict = check_runtime(
        RUNTIMES.make(runtime, **options), selector=selector, device=DEVICE.type, examples=share(4), steps=10,
        session_options=session,
    )  # fmt: skip
    assert {"same-answer", "counts", "rows", "refusals"} <= set(verdict.held)
