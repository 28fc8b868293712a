"""A session whose slots, pages and entries lie beyond 2**31 values answers as a small one does."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.shapes import BlockSpec
from tests.gpu.session.worlds import SHAPE, prompt
from tests.gpu_env import DEVICE

#: K and V of a block of a head: 2 * 64 * 256 values; 8 heads and 130 places of 64 slots make 2.2e9 of them a layer.
WIDE = attrs.evolve(SHAPE, name="wide", layers=2, hidden=64, q_heads=8, kv_heads=8, head_dim=256, context=4096)
SPEC = BlockSpec(block=64, window=32, stride=16, sink=1, local=1, budget=6)
PLACES, SLOTS, TOKENS = 130, 64, 1200


@pytest.mark.gpu
@pytest.mark.parametrize(("runtime", "selector"), [("offload-prefetch", "forecast"), ("offload-sync", "query")])
def test_the_last_place_of_a_huge_session_answers_as_the_only_one_of_a_small_session(
    runtime: str, selector: str
) -> None:
    model = tiny_model(WIDE, seed=2, dtype=torch.float32, device=DEVICE)
    where = RUNTIMES.make(runtime, policy="lru", slots=SLOTS)
    assert PLACES * WIDE.kv_heads * SLOTS * 2 * SPEC.block * WIDE.head_dim > 2**31
    answers = []
    for places in (1, PLACES):
        options = GpuOptions(places=places, tokens=TOKENS + 20, page_blocks=2)
        with GpuSession(
            model, runtime=where, selector=SELECTORS.make(selector), spec=SPEC, options=options
        ) as session:  # fmt: skip
            rows = [session.add() for _ in range(places)]
            for row in rows[:-1]:
                session.prefill(row, prompt(3, row))
            logits = [session.prefill(rows[-1], prompt(TOKENS), chunk=512)]
            for token in prompt(8, 7):
                result = session.decode({rows[-1]: token})
                logits.append(result.logits[-1])
            answers.append(torch.stack(logits))
    # A step of another bucket may split its sums otherwise.
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-3, atol=1e-3)
