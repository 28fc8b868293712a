"""Operations that prefill by choice runs on a GPU equal their references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.kernels.pool import reference as pool
from sparda_core.kernels.pool.tensors import pool_blocks
from sparda_core.kernels.topk import choose
from sparda_core.kernels.topk import reference as topk
from sparda_core.shapes import BlockSpec
from tests.profiles import share

INF, NAN = float("inf"), float("nan")
VALUES = torch.tensor([-INF, NAN, -1.5, 0.0, 0.5, 2.0, 3.0])


@given(
    entries=st.integers(0, 30), blocks=st.integers(0, 9), per_block=st.integers(1, 5), spill=st.integers(0, 7),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_pooling_at_once_is_pooling_block_by_block(
    entries: int, blocks: int, per_block: int, spill: int, seed: int
) -> None:
    made = torch.Generator().manual_seed(seed)
    scores = VALUES[torch.randint(len(VALUES), (2, 3, entries), generator=made)]
    want = pool.pool_blocks(scores, per_block=per_block, blocks=blocks, spill=spill)
    assert torch.equal(pool_blocks(scores, per_block=per_block, blocks=blocks, spill=spill), want)


@settings(deadline=None, max_examples=share(12))
@given(
    queries=st.integers(0, 4), free=st.integers(0, 3), last=st.integers(0, 200),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_gpu_chooses_for_many_queries_what_the_reference_chooses(
    *, queries: int, free: int, last: int, seed: int
) -> None:
    spec = BlockSpec(block=16, window=8, stride=8, sink=1, local=1, budget=3 + free)
    made = torch.Generator().manual_seed(seed)
    positions = torch.randint(-1, last + 1, (1, queries), generator=made)
    if queries:
        positions[0, 0] = last
    blocks = max(1, int(positions.max()) // 16 + 1 if queries else 1)
    scores = VALUES[torch.randint(len(VALUES), (1, 2, queries, blocks), generator=made)]
    want = topk.choose_blocks(scores, positions, spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "on_cpu", lambda *_: False)
        got = choose.choose_blocks(scores.to(DEVICE), positions.to(DEVICE), spec)
    assert torch.equal(got.cpu(), want)
