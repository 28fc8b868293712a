"""Pooling entry scores to block scores."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.kernels.pool.cpu import pool_blocks
from sparda_core.kernels.pool.reference import pool_blocks as pool_reference
from tests.kernels.cases import INF, NAN, randn, seeds


def _reach(block: int, per_block: int, entries: int, spill: int = 1) -> list[int]:
    """Entries that reach a block, found by raising one entry at a time."""
    lone = torch.full((entries, entries), -INF, dtype=torch.float64).fill_diagonal_(1.0)
    pooled = pool_blocks(lone, per_block=per_block, blocks=block + 1, spill=spill)
    return torch.nonzero(pooled[:, block] == 1.0).ravel().tolist()


def test_block_b_pools_entries_4b_minus_1_to_4b_plus_3() -> None:
    assert _reach(0, 4, 40) == [0, 1, 2, 3]
    assert _reach(1, 4, 40) == [3, 4, 5, 6, 7]
    assert _reach(7, 4, 40) == [27, 28, 29, 30, 31]


def test_a_block_pools_its_own_entries_alone_where_none_overlap() -> None:
    assert _reach(0, 8, 40, spill=0) == list(range(8))
    assert _reach(2, 8, 40, spill=0) == list(range(16, 24))
    assert _reach(2, 4, 40, spill=3) == list(range(5, 12))


def test_token_scores_pool_65_wide() -> None:
    assert _reach(2, 64, 300) == list(range(127, 192))


@given(
    seed=seeds, rows=st.integers(0, 4), entries=st.integers(0, 30), per_block=st.integers(1, 9),
    blocks=st.integers(0, 9), spill=st.integers(0, 11),
)  # fmt: skip
def test_pooling_on_a_cpu_equals_the_reference(
    seed: int, rows: int, entries: int, per_block: int, blocks: int, spill: int
) -> None:
    scores = randn(seed, 2, rows, entries)
    scores[scores > 1] = NAN
    scores[scores < -1] = -INF
    got = pool_blocks(scores, per_block=per_block, blocks=blocks, spill=spill)
    assert torch.equal(got, pool_reference(scores, per_block=per_block, blocks=blocks, spill=spill))


def test_a_block_that_no_entry_reaches_gets_minus_infinity() -> None:
    assert pool_blocks(torch.ones(1, 5), per_block=4, blocks=4).tolist() == [[1.0, 1.0, -INF, -INF]]


def test_a_nan_entry_never_wins_and_never_hides_its_neighbours() -> None:
    scores = torch.tensor([NAN, 2.0, NAN, NAN, NAN, NAN])
    assert pool_blocks(scores, per_block=2, blocks=3).tolist() == [2.0, 2.0, -INF]


def test_half_precision_scores_keep_their_dtype_and_value() -> None:
    scores = randn(0, 3, 17, dtype=torch.float32).bfloat16()
    got = pool_blocks(scores[:, ::2], per_block=4, blocks=3)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, pool_reference(scores[:, ::2], per_block=4, blocks=3))
