"""Decode on a GPU answers as decode on a CPU does: logits, tokens and facts."""

from __future__ import annotations

import pytest

from tests.gpu.session.worlds import SPEC, Pair, prompt
from tests.gpu_env import DEVICE

RUNTIMES = ("resident", "offload-sync", "offload-prefetch")
SELECTORS = ("query", "forecast", "infinigen", "dense", "window")
STEPS = 64 if DEVICE.type == "cuda" else 3
#: Blocks of 16 tokens: the first row opens one after two steps, the second is in its first block.
LENGTHS = (62, 9)



def fits(selector: str, runtime: str) -> bool:
    return not (selector == "query" and runtime == "offload-prefetch")


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("policy", ["last-selection", "lru"])
def test_every_combination_answers_as_on_a_cpu_over_a_block_that_opens(
    selector: str, runtime: str, policy: str
) -> None:
    if not fits(selector, runtime) or (runtime == "resident" and policy == "lru"):
        pytest.skip("no such combination")
    spec = SPEC if selector != "dense" else SPEC.with_budget(6 if DEVICE.type == "cpu" else 10)
    slots = spec.budget + 1 if policy == "lru" else None
    options = {"policy": policy, "slots": slots}
    with Pair(selector, runtime, spec=spec, runtime_options=options, places=2, tokens=96 if DEVICE.type == "cpu" else 160) as pair:
        for seed, length in enumerate(LENGTHS):
            pair.add(prompt(length, seed))
        pair.steps(STEPS)
