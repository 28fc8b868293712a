"""Block scores on a GPU against float64 references."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.pool.gpu import pooled_dots
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_proxy.gpu import project_keys, project_query, proxy_block_scores
from sparda_core.kernels.score_proxy.reference import proxy_block_scores as proxy_reference
from sparda_core.kernels.score_query import gpu as score_query
from sparda_core.kernels.score_query import splits as splitting
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.shapes import BlockSpec
from tests.gpu.score.cases import (
    SMALL,
    SPECS,
    TOLERANCE,
    as_view,
    assert_scores,
    entry_counts,
    keys,
    poisoned,
    positions,
    randn,
)  # fmt: skip
from tests.gpu_env import DEVICE, DTYPES

#: Inactive, without an entry, edges of windows and blocks, long enough for several tiles.
EDGES = (-1, 0, 7, 15, 16, 31, 47, 63, 64, 200)
SHAPES = ((1, 1, 32), (2, 3, 60), (3, 2, 64), (1, 16, 128))
#: Every scoring under every cut in every dtype; what is unseen changes with them.
CASES = [
    pytest.param(name, (i + j) % 2, spec, dtype, id=f"{name}-block-{spec.block}-{dtype}".replace("torch.", ""))
    for name in ("forecast", "query")
    for i, spec in enumerate(SPECS)
    for j, dtype in enumerate(DTYPES)
]


def place(at: Sequence[int]) -> torch.Tensor:
    return torch.tensor(at)[:, None].to(DEVICE)


def room_for(spec: BlockSpec, at: Sequence[int], heads: int) -> torch.Tensor:
    """Scores, poisoned, with room behind the longest row and free leading strides."""
    return poisoned(len(at), heads + 1, spec.block_count(max(at) + 1) + 3)[:, :heads, :-1]


def score(name: str, query: torch.Tensor, entries: torch.Tensor, spec: BlockSpec, at: Sequence[int], unseen: int,
          out: torch.Tensor) -> None:  # fmt: skip
    if name == "forecast":
        forecast_block_scores(query, entries, positions(at), spec, unseen, out)
        return
    scratch = query_scratch(
        places=len(at) + 1, q_heads=query.shape[1], kv_heads=entries.shape[1], entries=entries.shape[2], device=DEVICE
    )
    query_block_scores(query, entries, positions(at), spec, unseen, out, scratch)


@pytest.mark.parametrize(("name", "unseen", "spec", "dtype"), CASES)
def test_block_scores_equal_the_reference_at_every_edge(
    name: str, unseen: int, spec: BlockSpec, dtype: torch.dtype
) -> None:
    heads, group, width = (1, 1 if name == "forecast" else 3, 60)
    counts = entry_counts(EDGES, spec, unseen)
    entries = keys(1, counts, heads, width, dtype)
    query, out = randn(99, len(EDGES), heads * group, width, dtype=dtype), room_for(spec, EDGES, heads)
    score(name, query, entries, spec, EDGES, unseen, out)
    reference = forecast_reference if name == "forecast" else query_reference
    want = reference(query.double()[:, :, None], as_view(entries, counts), place(EDGES), spec)
    assert_scores(out, want, EDGES, spec.block, TOLERANCE)


@pytest.mark.parametrize(("heads", "group", "width"), SHAPES)
def test_every_shape_of_heads_is_scored(heads: int, group: int, width: int) -> None:
    at = (130, -1, 77)
    counts = entry_counts(at, SMALL, 0)
    entries, query = keys(5, counts, heads, width, torch.float32), randn(6, 3, heads * group, width)
    out = room_for(SMALL, at, heads)
    score("query", query, entries, SMALL, at, 0, out)
    want = query_reference(query.double()[:, :, None], as_view(entries, counts), place(at), SMALL)
    assert_scores(out, want, at, SMALL.block, TOLERANCE)
    out = room_for(SMALL, at, heads)
    score("forecast", query, entries, SMALL, at, 0, out)
    summed = query.double().view(3, heads, group, 1, width).sum(2)
    want = forecast_reference(summed, as_view(entries, counts), place(at), SMALL)
    assert_scores(out, want, at, SMALL.block, TOLERANCE)


@pytest.mark.parametrize("splits", [1, 3, 64])
def test_however_the_entries_are_split_the_query_scores_are_the_same(
    splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "MOST_SPLITS", splits)
    monkeypatch.setattr(score_query, "sm_count", lambda device: 132)
    at = (900, 260, 255)
    counts = entry_counts(at, SMALL, 0)
    entries, query = keys(5, counts, 1, 32, torch.float32), 4 * randn(6, 3, 2, 32)
    out = room_for(SMALL, at, 1)
    score("query", query, entries, SMALL, at, 0, out)
    want = query_reference(query.double()[:, :, None], as_view(entries, counts), place(at), SMALL)
    assert_scores(out, want, at, SMALL.block, TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("unseen", "group", "channels"), [(0, 1, 8), (1, 3, 20)])
def test_proxy_scores_equal_the_reference(unseen: int, group: int, channels: int, dtype: torch.dtype) -> None:
    counts = [max(0, at + 1 - unseen) for at in EDGES]
    partial = keys(3, counts, 2, channels, dtype)
    query, out = randn(4, len(EDGES), 2 * group, channels, dtype=dtype), room_for(SMALL, EDGES, 2)
    proxy_block_scores(query, partial, positions(EDGES), SMALL, unseen, 0.25, out)
    want = proxy_reference(
        query.double()[:, :, None], partial.double(), torch.tensor(counts, device=DEVICE), place(EDGES), SMALL, 0.25
    )
    assert_scores(out, want, EDGES, SMALL.block, TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_projections_take_each_places_own_channels_and_touch_nothing_else(dtype: torch.dtype) -> None:
    at, heads, group, width, channels = (5, -1, 0), 2, 3, 60, 12
    projection = randn(1, 4, heads, width, channels + 4, dtype=dtype)[:3, ..., :channels]
    query, key = randn(2, 3, heads * group, width, dtype=dtype), randn(3, 3, heads, width, dtype=dtype)
    skewed, partial = poisoned(3, heads, channels), poisoned(3, heads, 7, channels, dtype=dtype)
    project_query(query, projection, positions(at), skewed)
    project_keys(key, projection, positions(at), partial)
    summed = query.double().view(3, heads, group, width).sum(2)
    for row, position in enumerate(at):
        if position < 0:
            assert skewed[row].isnan().all()
            assert partial[row].isnan().all()
            continue
        want = (summed[row, :, None] @ projection[row].double())[:, 0]
        assert float((skewed[row] - want).norm() / want.norm()) < TOLERANCE
        want = (key[row, :, None].double() @ projection[row].double())[:, 0]
        assert float((partial[row, :, position].double() - want).norm() / want.norm()) < 2 * torch.finfo(dtype).eps
        others = [token for token in range(7) if token != position]
        assert partial[row][:, others].isnan().all()


@pytest.mark.parametrize("name", ["forecast", "query"])
def test_neighbours_and_capacity_change_no_bit(name: str) -> None:
    at = (333, 100, -1)
    counts = entry_counts(at, SMALL, 1)
    entries, query = keys(8, counts, 2, 32, torch.float32), randn(9, 3, 4 if name == "query" else 2, 32)
    together = room_for(SMALL, at, 2)
    score(name, query, entries, SMALL, at, 1, together)
    others = (at[0], -1, 250)
    fresh = keys(8, entry_counts((at[0], 0, 250), SMALL, 1), 2, 32, torch.float32)
    fresh[0, :, : counts[0]] = entries[0, :, : counts[0]]
    apart = room_for(SMALL, others, 2)
    score(name, torch.cat((query[:1], randn(10, 2, *query.shape[1:]))), fresh, SMALL, others, 1, apart)
    assert torch.equal(together[0].nan_to_num(7.0), apart[0].nan_to_num(7.0))


def test_a_nan_in_an_entry_costs_a_forecast_only_that_entry_and_never_gives_nan() -> None:
    at = (200,)
    counts = entry_counts(at, SMALL, 0)
    entries = keys(1, counts, 1, 32, torch.float32)
    entries[0, 0, 9] = float("nan")
    query, out = randn(2, 1, 1, 32), room_for(SMALL, at, 1)
    score("forecast", query, entries, SMALL, at, 0, out)
    want = forecast_reference(query.double()[:, :, None], as_view(entries, counts), place(at), SMALL)
    assert_scores(out, want, at, SMALL.block, TOLERANCE)
    out = room_for(SMALL, at, 1)
    score("query", query, entries, SMALL, at, 0, out)
    assert not out[0, :, : at[0] // SMALL.block + 1].isnan().any()


def test_what_does_not_fit_is_refused() -> None:
    at = (40, 50)
    entries = keys(1, entry_counts(at, SMALL, 0), 2, 32, torch.float32)
    query, out = randn(2, 2, 4, 32), poisoned(2, 2, 9)
    good = {"block": 16, "window": 8, "stride": 4, "unseen": 0}
    with pytest.raises(ConfigError, match="not a multiple"):
        pooled_dots(query[:, :3], entries, positions(at), out, **good)
    with pytest.raises(ConfigError, match="keys has shape"):
        pooled_dots(query[..., :16], entries, positions(at), out, **good)
    with pytest.raises(ConfigError, match="int32"):
        pooled_dots(query, entries, positions(at).long(), out, **good)
    with pytest.raises(ConfigError, match="contiguous"):
        pooled_dots(query, entries, positions(at), poisoned(2, 2, 18)[..., ::2], **good)
    scratch = query_scratch(places=1, q_heads=4, kv_heads=2, entries=100, device=DEVICE)
    with pytest.raises(ConfigError, match="query_scratch"):
        query_block_scores(query, entries, positions(at), SMALL, 0, out, scratch)
    scratch = query_scratch(places=2, q_heads=4, kv_heads=2, entries=100, device=DEVICE)
    with pytest.raises(ConfigError, match="one dtype"):
        query_block_scores(query.half(), entries, positions(at), SMALL, 0, out, scratch)
