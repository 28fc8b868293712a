"""Decode on a GPU answers as decode on a CPU does: logits, tokens and facts."""

from __future__ import annotations

import pytest

from tests.gpu.session.worlds import SPEC, Pair, prompt

RUNTIMES = ("resident", "offload-sync", "offload-prefetch")
SELECTORS = ("query", "forecast", "infinigen", "dense", "window")
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
    spec = SPEC if selector != "dense" else SPEC.with_budget(6)
    slots = spec.budget + 1 if policy == "lru" else None
    with Pair(selector, runtime, spec=spec, runtime_options={"policy": policy, "slots": slots}, places=2) as pair:
        for seed, length in enumerate(LENGTHS):
            pair.add(prompt(length, seed))
        pair.steps(4)
