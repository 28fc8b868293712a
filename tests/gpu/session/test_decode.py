"""Decode on a GPU answers as decode on a CPU does: logits, tokens and facts."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest

from tests.gpu.session.worlds import SHAPE, SPEC, WIDE, Pair, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
SELECTORS = ("query", "forecast", "infinigen", "dense", "window", "nosa", "nosa-forecast")
#: Blocks of 16 tokens: the first row opens one in the second step. On a GPU a second row is in its first block.
LENGTHS, STEPS = ((63, 9), 40) if ON_GPU else ((63,), 2)
#: What the interpreter is given of the pairs under `lru`; a GPU gets all.
LRU = {("query", "offload-sync"), ("forecast", "offload-sync"), ("infinigen", "offload-prefetch")}


def cases() -> Iterator[tuple[str, str, str]]:
    """Selector, runtime, policy."""
    for selector in SELECTORS:
        yield selector, "resident", "last-selection"
        for runtime in ("offload-sync", "offload-prefetch"):
            if selector in ("query", "nosa") and runtime == "offload-prefetch":
                continue  # it knows its blocks no layer early
            yield selector, runtime, "last-selection"
            if ON_GPU or (selector, runtime) in LRU:
                yield selector, runtime, "lru"


#: Of five blocks three are forced, one goes by the query or the Forecast, one by the bias; three compete for the two.
NOSA = {"nosa", "nosa-forecast"}
FIVE, BIASED = SPEC.with_budget(5), attrs.evolve(SHAPE, token_bias=True)


@pytest.mark.parametrize(("selector", "runtime", "policy"), list(cases()))
def test_every_combination_answers_as_on_a_cpu_over_a_block_that_opens(
    selector: str, runtime: str, policy: str
) -> None:
    spec = SPEC.with_budget(7) if selector == "dense" else FIVE if selector in NOSA else SPEC
    tokens = 144 if selector in NOSA else 112
    options = {"policy": policy, "slots": spec.budget + 1 if policy == "lru" else None}
    with Pair(
        selector, runtime, spec=spec, selector_options={"select_blocks": 2} if selector in NOSA else None,
        runtime_options=options, places=2, tokens=tokens, shape=BIASED if selector in NOSA else SHAPE,
    ) as pair:  # fmt: skip
        for seed, length in enumerate((LENGTHS[0] + 32, *LENGTHS[1:]) if selector in NOSA else LENGTHS):
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


def test_rows_with_a_token_bias_are_forked_cropped_moved_and_taken_over() -> None:
    options = {"policy": "score", "slots": 6}
    with Pair(
        "nosa-forecast", "offload-prefetch", spec=FIVE, selector_options={"select_blocks": 2}, runtime_options=options,
        shape=BIASED, places=3, tokens=144,
    ) as pair:  # fmt: skip
        first, second = pair.add(prompt(93)), pair.add(prompt(30, 1))
        copy = pair.fork(first)
        pair.crop(first, 81)
        pair.retire(second)  # the copy moves into its place
        pair.steps(1)
        pair.prefill(copy, prompt(9, 3), chunk=4)
        snapshots = [session.snapshot(copy) for session in pair.both()]
        assert snapshots[0].bias is not None
        assert snapshots[1].bias is not None
        np.testing.assert_allclose(snapshots[1].bias, snapshots[0].bias, rtol=1e-4, atol=1e-4)
        pair.cpu.adopt(snapshots[1])
        pair.gpu.adopt(snapshots[0])
        pair.steps(1)


def test_dense_attention_adds_the_bias_wherever_blocks_lie() -> None:
    for runtime in ("resident", "offload-sync"):
        with Pair("dense", runtime, spec=SPEC.with_budget(7), shape=BIASED, places=1, tokens=64) as pair:
            pair.add(prompt(45))
            pair.steps(1)
