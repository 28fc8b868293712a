"""Decode on a GPU answers as decode on a CPU does: logits, tokens and facts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.session.worlds import SPEC, WIDE, Pair, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
SELECTORS = ("query", "forecast", "infinigen", "dense", "window")
#: Blocks of 16 tokens: the first row opens one in the second step. On a GPU a second row is in its first block.
LENGTHS, STEPS = ((63, 9), 40) if ON_GPU else ((63,), 2)
#: What the interpreter is given of the pairs under `lru`; a GPU gets all.
LRU = {("query", "offload-sync"), ("forecast", "offload-sync"), ("infinigen", "offload-prefetch")}


def cases() -> Iterator[tuple[str, str, str]]:
    """Selector, runtime, policy."""
    for selector in SELECTORS:
        yield selector, "resident", "last-selection"
        for runtime in ("offload-sync", "offload-prefetch"):
            if selector == "query" and runtime == "offload-prefetch":
                continue  # it knows its blocks no layer early
            yield selector, runtime, "last-selection"
            if ON_GPU or (selector, runtime) in LRU:
                yield selector, runtime, "lru"


@pytest.mark.parametrize(("selector", "runtime", "policy"), list(cases()))
def test_every_combination_answers_as_on_a_cpu_over_a_block_that_opens(
    selector: str, runtime: str, policy: str
) -> None:
    spec = SPEC.with_budget(7) if selector == "dense" else SPEC
    options = {"policy": policy, "slots": spec.budget + 1 if policy == "lru" else None}
    with Pair(selector, runtime, spec=spec, runtime_options=options, places=2, tokens=112) as pair:
        for seed, length in enumerate(LENGTHS):
            pair.add(prompt(length, seed))
        pair.steps(STEPS)


@pytest.mark.parametrize("runtime", ["resident", "offload-prefetch"])
def test_dense_attends_to_rows_that_are_longer_than_the_budget_where_every_layer_is_resident(runtime: str) -> None:
    """Prefetch keeps no layer of this model on the host: as many resident layers as there are."""
    options = {} if runtime == "resident" else {"resident_layers": 2}
    with Pair("dense", runtime, spec=SPEC.with_budget(8), runtime_options=options, places=1, tokens=128) as pair:
        pair.add(prompt(50))
        pair.steps(1)


def test_several_kv_heads_and_layers_between_the_first_and_the_last() -> None:
    with Pair("forecast", "offload-prefetch", shape=WIDE, places=2) as pair:
        pair.add(prompt(79))
        pair.steps(2)
