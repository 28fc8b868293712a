"""Block scores of the Forecast, the true query and the proxy query."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.kernels.score_forecast.cpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.kernels.score_query.reference import score_query
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec
from tests.kernels.cases import (
    INF,
    NAN,
    entry_view,
    groups,
    head_dims,
    kv_heads,
    last_positions,
    lengths,
    randn,
    seeds,
    specs,
)  # fmt: skip

Score = Callable[[torch.Tensor, EntryView, torch.Tensor, BlockSpec], torch.Tensor]
SCORERS = pytest.mark.parametrize(
    ("score", "group"), [(forecast_block_scores, 1), (query_block_scores, 3)], ids=["forecast", "query"]
)


@given(
    data=st.data(), seed=seeds, spec=specs(), heads=kv_heads, group=groups, width=head_dims, queries=st.integers(1, 3)
)
def test_scores_on_a_cpu_equal_the_references(
    data: st.DataObject, seed: int, spec: BlockSpec, heads: int, group: int, width: int, queries: int
) -> None:
    tokens = data.draw(lengths(spec, rows=3))
    entries = entry_view(seed, [spec.entry_count(n) for n in tokens], heads=heads, width=width)
    positions = last_positions(tokens, queries)
    query = randn(seed + 9, 3, heads * group, queries, width)
    got = query_block_scores(query, entries, positions, spec)
    torch.testing.assert_close(got, query_reference(query, entries, positions, spec), rtol=1e-11, atol=1e-13)
    forecast = query[:, :heads]
    got = forecast_block_scores(forecast, entries, positions, spec)
    torch.testing.assert_close(got, forecast_reference(forecast, entries, positions, spec), rtol=1e-11, atol=1e-11)


@given(seed=seeds, tokens=st.integers(1, 200), group=st.integers(1, 4))
def test_the_query_score_is_the_sum_of_per_head_probabilities_over_visible_entries(
    seed: int, tokens: int, group: int
) -> None:
    spec = BlockSpec(block=32, window=16, stride=8, local=1)
    count = spec.entry_count(tokens)
    entries = entry_view(seed, [count], heads=1, width=32)
    query, position = randn(seed + 1, 1, group, 1, 32), tokens - 3
    got = score_query(query, entries, torch.tensor([[position]]), spec)[0, 0, 0].tolist()
    want = [-INF] * count
    visible = [c for c in range(count) if 8 * c + 16 - 1 <= position]
    for head in range(group):
        logits = {c: float(query[0, head, 0] @ entries.padded()[0, 0, c]) / math.sqrt(32) for c in visible}
        total = sum(math.exp(logit) for logit in logits.values())
        for c in visible:
            want[c] = (0.0 if want[c] == -INF else want[c]) + math.exp(logits[c]) / total
    assert got == pytest.approx(want, rel=1e-9)


@SCORERS
@pytest.mark.parametrize("tokens", [31, 32, 47, 48, 64, 79, 80, 95, 100])
def test_an_entry_is_visible_once_its_last_token_is_no_later_than_the_query(
    score: Score, group: int, tokens: int
) -> None:
    """79 and 95 are the lengths at which the public kernel loses every query's newest entry."""
    spec = BlockSpec(block=16, local=2)
    entries = entry_view(0, [spec.entry_count(tokens)], heads=1, width=32)
    for position in range(tokens):
        pooled = score(randn(1, 1, group, 1, 32), entries, torch.tensor([[position]]), spec)
        scored = torch.nonzero(pooled[0, 0, 0] > -INF).ravel().tolist()
        visible = [c for c in range(spec.entry_count(tokens)) if 16 * c + 31 <= position]
        assert pooled.shape[-1] == position // 16 + 1
        assert scored == sorted({*visible, *(c + 1 for c in visible)}), position


@SCORERS
@given(seed=seeds, dtype=st.sampled_from([torch.float64, torch.float32]))
def test_neighbours_chunking_and_capacity_change_no_bit(
    score: Score, group: int, seed: int, dtype: torch.dtype
) -> None:
    spec = BlockSpec(block=32, window=16, stride=8, local=1)
    tokens = [300, 0, 77]
    counts = [spec.entry_count(n) for n in tokens]
    entries = entry_view(seed, counts, heads=2, width=60, dtype=dtype)
    query, positions = randn(seed, 3, 2 * group, 40, 60).to(dtype), last_positions(tokens, 40)
    together = score(query, entries, positions, spec)
    for row, t in ((0, 39), (0, 7), (2, 11)):
        alone = EntryView(
            buffer=entries.buffer[entries.rows[row]][None, :, : counts[row]].clone(), rows=torch.tensor([0]),
            counts=torch.tensor([counts[row]]),
        )  # fmt: skip
        single = score(query[row : row + 1, :, t : t + 1], alone, positions[row : row + 1, t : t + 1], spec)
        assert torch.equal(single[0, :, 0], together[row, :, t, : single.shape[-1]])
        assert (together[row, :, t, single.shape[-1] + 1 :] == -INF).all()


@SCORERS
def test_an_inactive_row_and_a_row_without_entries_score_minus_infinity(score: Score, group: int) -> None:
    spec = BlockSpec()
    entries = entry_view(0, [0, 0, 9], heads=2, width=32)
    got = score(randn(0, 3, 2 * group, 1, 32), entries, torch.tensor([[-1], [30], [170]]), spec)
    assert got.shape == (3, 2, 1, 3)
    assert (got[:2] == -INF).all()
    assert torch.isfinite(got[2]).all()


@SCORERS
def test_a_batch_without_active_rows_scores_no_block(score: Score, group: int) -> None:
    entries, positions = entry_view(0, [0, 5], heads=1, width=32), torch.tensor([[-1], [-1]])
    got = score(randn(0, 2, group, 1, 32), entries, positions, BlockSpec())
    assert got.shape == (2, 1, 1, 0)


@SCORERS
def test_a_nan_in_an_entry_costs_that_entry_its_rank_and_the_choice_stays_lawful(score: Score, group: int) -> None:
    spec = BlockSpec(budget=6)
    entries = entry_view(0, [63], heads=1, width=32)
    entries.buffer[entries.rows[0], 0, 10] = NAN
    pooled = score(randn(0, 1, group, 1, 32), entries, torch.tensor([[1023]]), spec)
    assert not pooled.isnan().any()
    chosen = choose_blocks(pooled, torch.tensor([[1023]]), spec)[0, 0, 0].tolist()
    assert chosen == sorted(set(chosen))
    assert set(spec.forced_blocks(1023)) <= set(chosen)


@SCORERS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("entry_dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_widened_to_float32(
    score: Score, group: int, dtype: torch.dtype, entry_dtype: torch.dtype
) -> None:
    entries = entry_view(0, [20, 7], heads=2, width=64, dtype=entry_dtype)
    wide = EntryView(buffer=entries.buffer.float(), rows=entries.rows, counts=entries.counts)
    query, positions = randn(3, 2, 2 * group, 1, 64).to(dtype), torch.tensor([[351], [143]])
    got = score(query, entries, positions, BlockSpec())
    assert got.dtype == torch.float32
    assert torch.equal(got, score(query.float(), wide, positions, BlockSpec()))


@SCORERS
def test_strided_inputs_give_the_same_scores(score: Score, group: int) -> None:
    entries = entry_view(0, [20, 7], heads=2, width=64)
    strided = EntryView(buffer=entries.buffer.repeat(1, 1, 1, 2)[..., :64], rows=entries.rows, counts=entries.counts)
    query, positions = randn(3, 2, 2 * group, 4, 64), last_positions([352, 144], 4)
    across = query.transpose(1, 2).contiguous().transpose(1, 2)
    got = score(across, strided, positions.t().contiguous().t(), BlockSpec())
    assert torch.equal(got, score(query, entries, positions, BlockSpec()))


@SCORERS
def test_what_does_not_fit_is_refused(score: Score, group: int) -> None:
    entries = entry_view(0, [20, 7], heads=2, width=64)
    query, positions = randn(3, 2, 2 * group, 1, 64), torch.tensor([[351], [143]])
    with pytest.raises(ConfigError, match="positions has shape"):
        score(query, entries, positions[:1], BlockSpec())
    with pytest.raises(ConfigError, match="entries has shape"):
        score(query[..., :32], entries, positions, BlockSpec())
    short = EntryView(buffer=entries.buffer[:, :, :19], rows=entries.rows, counts=entries.counts)
    with pytest.raises(ConfigError, match=r"entries\.counts spans"):
        score(query, short, positions, BlockSpec())
    elsewhere = EntryView(buffer=entries.buffer, rows=entries.rows + 4, counts=entries.counts)
    with pytest.raises(ConfigError, match=r"entries\.rows spans"):
        score(query, elsewhere, positions, BlockSpec())
    with pytest.raises(ConfigError, match=r"torch\.int64"):
        score(query.long(), entries, positions, BlockSpec())


@given(seed=seeds, tokens=st.integers(1, 3000), spec=specs())
def test_leaving_the_newest_entry_out_never_changes_a_choice_of_the_forecast(
    seed: int, tokens: int, spec: BlockSpec
) -> None:
    """The forced band covers every block that the newest entry reaches (BlockSpec.local)."""
    count = spec.entry_count(tokens)
    entries = entry_view(seed, [count], heads=1, width=32)
    earlier = EntryView(buffer=entries.buffer, rows=entries.rows, counts=torch.tensor([spec.entry_count(tokens - 1)]))
    forecast, positions = randn(seed + 1, 1, 1, 1, 32), torch.tensor([[tokens - 1]])
    with_newest = choose_blocks(forecast_block_scores(forecast, entries, positions, spec), positions, spec)
    without = choose_blocks(forecast_block_scores(forecast, earlier, positions, spec), positions, spec)
    assert torch.equal(with_newest, without)
