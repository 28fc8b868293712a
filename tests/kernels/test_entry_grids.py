"""Any grid of entries: windows and strides that divide the block, overlapping or not, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.distill.scores import entries_of, pool_blocks, visible_entries
from sparda_core.footprint import entry_bytes
from sparda_core.kernels.compress.cpu import compress
from sparda_core.kernels.score_forecast.cpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec, named_shape
from tests.kernels.cases import randn, seeds


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def grids(draw: st.DrawFn) -> BlockSpec:
    """A window and a stride that divide the block, the stride the window too."""
    block = draw(st.sampled_from([4, 6, 8, 12, 16]))
    window = draw(st.sampled_from(divisors(block)))
    return BlockSpec(block=block, window=window, stride=draw(st.sampled_from(divisors(window))), local=1, budget=4)


def best_by_block(scores: list[float], position: int, spec: BlockSpec) -> list[float]:
    """Best of the entries that hold a token of the block and end at or before the query. No arithmetic on indices."""
    best = [-math.inf] * (position // spec.block + 1)
    for c, score in enumerate(scores):
        tokens = range(spec.stride * c, spec.stride * c + spec.window)
        if tokens[-1] <= position:
            for block in {token // spec.block for token in tokens}:
                best[block] = max(best[block], score)
    return best


def means(keys_ND: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """[C, D] of one head, by definition."""
    rows, start = [], 0
    while start + spec.window <= keys_ND.shape[0]:
        rows.append(sum(keys_ND[start + i] for i in range(spec.window)) / spec.window)
        start += spec.stride
    return torch.stack(rows) if rows else keys_ND[:0]  # type: ignore[arg-type]


@given(seed=seeds, spec=grids(), tokens=st.integers(1, 70), back=st.integers(0, 3))
def test_scores_of_every_grid_equal_plain_loops(seed: int, spec: BlockSpec, tokens: int, back: int) -> None:
    group, width, position = 3, 4, max(0, tokens - 1 - back)
    keys, query = randn(seed, 2, tokens, width), randn(seed + 1, 1, 2 * group, 1, width)
    entries = compress(keys, window=spec.window, stride=spec.stride)
    assert entries.shape[1] == spec.entry_count(tokens)
    view = EntryView(buffer=entries[None], rows=torch.tensor([0]), counts=torch.tensor([entries.shape[1]]))
    where = torch.tensor([[position]])
    dots, shares = [], []
    for head in range(2):
        found = means(keys[head], spec)
        torch.testing.assert_close(entries[head], found, rtol=1e-12, atol=1e-12)
        seen = [c for c in range(len(found)) if spec.stride * c + spec.window - 1 <= position]
        heads = query[0, head * group : (head + 1) * group, 0]
        dots.append(best_by_block((found @ query[0, head, 0]).tolist(), position, spec))
        total = torch.zeros(len(found), dtype=torch.float64)
        for one in heads:
            total[seen] += torch.softmax(found[seen] @ one / math.sqrt(width), dim=0)
        shares.append(best_by_block(total.tolist(), position, spec))
    for dotted in (forecast_block_scores, forecast_reference):
        got = dotted(query[:, :2], view, where, spec)
        torch.testing.assert_close(got[0, :, 0], torch.tensor(dots, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    for shared in (query_block_scores, query_reference):
        got = shared(query, view, where, spec)
        torch.testing.assert_close(got[0, :, 0], torch.tensor(shares, dtype=torch.float64), rtol=1e-11, atol=1e-13)


@given(seed=seeds, spec=grids(), tokens=st.integers(1, 70))
def test_the_trainers_pool_equals_plain_loops(seed: int, spec: BlockSpec, tokens: int) -> None:
    entries = entries_of(randn(seed, 1, tokens, 3), spec)
    positions = torch.arange(tokens)
    visible = visible_entries(positions, entries.shape[1], spec)
    scores = randn(seed + 1, 1, tokens, entries.shape[1]).masked_fill(~visible, -math.inf)
    got = pool_blocks(scores, spec.block_count(tokens), spec)
    for position in range(tokens):
        want = best_by_block(scores[0, position].tolist(), position, spec)
        assert got[0, position, : len(want)].tolist() == want
        assert (got[0, position, len(want) :] == -math.inf).all()


@pytest.mark.parametrize(
    ("window", "stride", "width", "spill"),
    [(32, 16, 5, 1), (16, 8, 9, 1), (8, 8, 8, 0), (4, 4, 16, 0), (1, 1, 64, 0), (64, 16, 7, 3), (64, 64, 1, 0)],
)
def test_a_block_pools_the_entries_that_touch_it(window: int, stride: int, width: int, spill: int) -> None:
    spec = BlockSpec(window=window, stride=stride)
    assert (spec.pool_width, spec.spill) == (width, spill)
    third = set(range(128, 192))
    touching = [c for c in range(300) if third & set(range(stride * c, stride * c + window))]
    assert len(touching) == width


@pytest.mark.parametrize(("window", "stride", "share"), [(32, 16, 16), (8, 8, 8), (4, 4, 4), (1, 1, 1)])
def test_the_index_of_a_grid_is_one_stride_th_of_the_keys(window: int, stride: int, share: int) -> None:
    shape, tokens = named_shape("minicpm4.1-8b"), 2**17
    keys = tokens * shape.layers * shape.kv_heads * shape.head_dim * 2
    spec = BlockSpec(window=window, stride=stride)
    assert entry_bytes(shape, spec, [tokens], 2) == pytest.approx(keys / share, rel=1e-3)
