"""Writing new tokens into blocks, and moving blocks between tiers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.kernels.append.reference import append_tokens as append_reference
from sparda_core.kernels.gather.cpu import gather_blocks
from sparda_core.kernels.gather.reference import gather_blocks as gather_reference
from tests.kernels.cases import seeds


@given(
    seed=seeds, batch=st.integers(1, 3), heads=st.integers(1, 5), count=st.integers(0, 9),
    dtype=st.sampled_from(["f4", "f8"]),
)  # fmt: skip
def test_append_writes_what_the_reference_writes_and_nothing_else(
    seed: int, batch: int, heads: int, count: int, dtype: str
) -> None:
    stream = np.random.default_rng(seed)
    pool = np.full((batch * heads * max(1, count), 2, 16, 60), np.nan, dtype)
    blocks = stream.permutation(pool.shape[0])[: batch * heads * count].reshape(batch, heads, count)
    blocks[stream.random(blocks.shape) < 0.3] = -1
    offsets = stream.integers(0, 16, (batch, count))
    # [B, T, Hk, D] seen as [B, Hk, T, D], as a projection leaves it
    key, value = stream.standard_normal((2, batch, count, heads, 60)).transpose(0, 1, 3, 2, 4)
    want = pool.copy()
    append_reference(want, blocks, offsets, key, value)
    append_tokens(pool, blocks, offsets, key, value)
    np.testing.assert_array_equal(pool, want)


def test_a_skipped_token_may_have_any_offset_and_leaves_the_pool_alone() -> None:
    pool = np.full((2, 2, 16, 4), np.nan, np.float32)
    token = np.ones((1, 1, 1, 4), np.float32)
    append_tokens(pool, np.array([[[-1]]]), np.array([[-1]]), token, token)
    assert np.isnan(pool).all()


@pytest.mark.parametrize(
    ("block", "offset", "message"),
    [(2, 0, r"physical spans \[2, 2\]"), (-2, 0, r"\[-1, 2\)"), (1, 16, r"\[0, 16\)"), (1, -1, r"\[0, 16\)")],
)
def test_append_outside_the_pool_is_refused_and_writes_nothing(block: int, offset: int, message: str) -> None:
    pool = np.full((2, 2, 16, 4), np.nan, np.float32)
    token = np.ones((1, 1, 1, 4), np.float32)
    with pytest.raises(ConfigError, match=message):
        append_tokens(pool, np.array([[[block]]]), np.array([[offset]]), token, token)
    assert np.isnan(pool).all()


def test_append_refuses_a_pool_that_it_could_only_write_a_copy_of() -> None:
    token = np.ones((1, 1, 1, 4), np.float32)
    where = np.zeros((1, 1, 1), np.int64)
    for pool in (np.zeros((2, 2, 16, 8), np.float32)[..., ::2], np.zeros((2, 2, 16, 4), np.float16)):
        with pytest.raises(ConfigError, match="written in place"):
            append_tokens(pool, where, where[0], token, token)


@given(seed=seeds, blocks=st.integers(0, 12), data=st.data(), dtype=st.sampled_from(["f4", "f8"]))
def test_gather_in_pieces_moves_exactly_the_blocks_listed(
    seed: int, blocks: int, data: st.DataObject, dtype: str
) -> None:
    stream = np.random.default_rng(seed)
    source = stream.standard_normal((12, 2, 16, 6)).astype(dtype)
    source[::3, :, 5:] = np.nan
    target = np.full((15, 2, 16, 6), np.inf, dtype)
    sources, targets = stream.integers(0, 12, blocks), stream.permutation(15)[:blocks]
    want = target.copy()
    gather_reference(source, want, sources, targets, 0, blocks)
    cut = data.draw(st.integers(0, blocks))
    gather_blocks(source, target, sources, targets, 0, cut)
    np.testing.assert_array_equal(target[targets[cut:]], np.inf)
    gather_blocks(source, target, sources, targets, cut, blocks)
    np.testing.assert_array_equal(target, want)


@pytest.mark.parametrize(
    ("sources", "targets", "stop", "message"),
    [
        ([3], [0], 1, r"source_ids spans \[3, 3\]"),
        ([0], [-1], 1, "target_ids spans"),
        ([0], [0], 2, "start=0, stop=2"),
        ([0, 1], [0], 1, "target_ids has shape"),
    ],
)
def test_gather_outside_a_tier_is_refused_and_moves_nothing(
    sources: list[int], targets: list[int], stop: int, message: str
) -> None:
    source, target = np.zeros((3, 2, 16, 4)), np.full((3, 2, 16, 4), np.nan)
    with pytest.raises(ConfigError, match=message):
        gather_blocks(source, target, np.array(sources), np.array(targets), 0, stop)
    assert np.isnan(target).all()


def test_gather_refuses_tiers_of_two_dtypes() -> None:
    source, target = np.zeros((3, 2, 16, 4), np.float32), np.zeros((3, 2, 16, 4))
    with pytest.raises(ConfigError, match="one dtype"):
        gather_blocks(source, target, np.array([0]), np.array([0]), 0, 1)


def test_gather_runs_on_several_threads_at_once() -> None:
    source = np.random.default_rng(0).standard_normal((64, 2, 64, 64))
    target = np.full_like(source, np.nan)
    order = np.random.default_rng(1).permutation(64)
    pieces = [
        threading.Thread(target=gather_blocks, args=(source, target, order, order, at, at + 8))
        for at in range(0, 64, 8)
    ]
    for piece in pieces:
        piece.start()
    for piece in pieces:
        piece.join()
    np.testing.assert_array_equal(target, source)
