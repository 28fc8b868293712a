"""Scores and the objective against loops that anyone can read."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.distill.scores import (
    entries_of,
    free_blocks,
    pool_blocks,
    query_entry_scores,
    visible_entries,
)
from sparda_core.shapes import BlockSpec

SPECS = st.sampled_from(
    [
        BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=6),
        BlockSpec(block=6, window=3, stride=3, sink=0, local=2, budget=6),
        BlockSpec(block=8, window=8, stride=4, sink=2, local=1, budget=6),
    ]
)


def case(seed: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [4, Q, 3], f [2, Q, 3], k [2, T, 3] and every position."""
    source = torch.Generator().manual_seed(seed)
    positions_Q = torch.arange(tokens)
    q, f, k = (torch.randn(h, tokens, 3, dtype=torch.float64, generator=source) for h in (4, 2, 2))
    return q, f, k, positions_Q


@given(spec=SPECS, seed=st.integers(0, 9), tokens=st.integers(1, 70))
def test_entries_are_means_of_full_windows_only(spec: BlockSpec, seed: int, tokens: int) -> None:
    k = case(seed, tokens)[2]
    got = entries_of(k, spec)
    assert got.shape == (2, spec.entry_count(tokens), 3)
    for c in range(got.shape[1]):
        torch.testing.assert_close(got[:, c], k[:, spec.stride * c : spec.stride * c + spec.window].mean(1))


@given(spec=SPECS, tokens=st.integers(1, 70))
def test_an_entry_is_visible_from_its_last_token_on_and_free_blocks_are_what_is_not_forced(
    spec: BlockSpec, tokens: int
) -> None:
    positions_Q = torch.arange(tokens)
    visible = visible_entries(positions_Q, spec.entry_count(tokens), spec)
    free = free_blocks(positions_Q, spec.block_count(tokens), spec)
    for i in range(tokens):
        assert visible[i].tolist() == [spec.stride * c + spec.window - 1 <= i for c in range(visible.shape[1])]
        allowed = set(range(i // spec.block + 1)) - set(spec.forced_blocks(i))
        assert set(free[i].nonzero().flatten().tolist()) == allowed


@given(spec=SPECS, seed=st.integers(0, 9), tokens=st.integers(1, 70))
def test_query_scores_and_their_pool_equal_a_loop_over_heads_entries_and_blocks(
    spec: BlockSpec, seed: int, tokens: int
) -> None:
    q, _, k, positions_Q = case(seed, tokens)
    entries = entries_of(k, spec)
    count, blocks = entries.shape[1], spec.block_count(tokens)
    got = query_entry_scores(q, entries, visible_entries(positions_Q, count, spec))
    pooled = pool_blocks(got, blocks, spec)
    per_block = spec.block // spec.stride
    for g in range(2):
        for i in range(0, tokens, 7):
            want = [0.0] * count
            seen = [c for c in range(count) if spec.stride * c + spec.window - 1 <= i]
            for h in (2 * g, 2 * g + 1):
                logits = [float(q[h, i] @ entries[g, c]) / math.sqrt(3) for c in seen]
                total = sum(math.exp(x) for x in logits)
                for c, x in zip(seen, logits, strict=True):
                    want[c] += math.exp(x) / total
            assert got[g, i].tolist() == pytest.approx(want, abs=1e-12)
            for b in range(blocks):
                touched = [want[c] for c in range(per_block * b - spec.spill, per_block * (b + 1)) if 0 <= c < count]
                assert float(pooled[g, i, b]) == pytest.approx(max(touched, default=-math.inf))
