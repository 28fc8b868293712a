"""Scoring on a GPU under any grid of entries: windows that overlap more than once, once, not at all, and tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.shapes import BlockSpec
from tests.gpu.score.cases import TOLERANCE, as_view, assert_scores, entry_counts, keys, poisoned, positions, randn
from tests.gpu_env import DEVICE, DTYPES

ON_GPU = DEVICE.type == "cuda"
#: Window / stride in blocks of 16: not overlapping, every token, three and seven entries that reach in; as long as a
#: block; and one that is longer than a block by its stride.
GRIDS = ((4, 4), (2, 2), (1, 1), (8, 2), (16, 2), (16, 16), (16, 1), (24, 8))
#: A row in every part of a block and of a tile of blocks.
AT = (0, 7, 15, 16, 63, -1, 200)
GROUP, HEADS, WIDTH = 2, 1, 20


def place(at: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(at)[:, None].to(DEVICE)


@pytest.mark.parametrize("name", ["forecast", "query"])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}-{grid[1]}")
def test_block_scores_equal_the_reference_under_every_grid(name: str, grid: tuple[int, int]) -> None:
    window, stride = grid
    spec = BlockSpec(block=16, window=window, stride=stride, sink=1, local=2, budget=6)
    dtype, unseen = DTYPES[GRIDS.index(grid) % len(DTYPES)], GRIDS.index(grid) % 2
    counts = entry_counts(AT, spec, unseen)
    entries, out = keys(3, counts, HEADS, WIDTH, dtype), poisoned(len(AT), HEADS, spec.block_count(max(AT) + 1) + 1)
    query = randn(7, len(AT), HEADS * (GROUP if name == "query" else 1), WIDTH, dtype=dtype)
    if name == "forecast":
        forecast_block_scores(query, entries, positions(AT), spec, unseen, out)
    else:
        scratch = query_scratch(
            places=len(AT), q_heads=query.shape[1], kv_heads=HEADS, entries=entries.shape[2], device=DEVICE
        )
        query_block_scores(query, entries, positions(AT), spec, unseen, out, scratch)
    reference = forecast_reference if name == "forecast" else query_reference
    want = reference(query.double()[:, :, None], as_view(entries, counts), place(AT), spec)
    assert_scores(out, want, AT, spec.block, TOLERANCE)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_tile_of_one_block_reads_its_neighbours_keys(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the keys of one block alone fill a program."""
    monkeypatch.setattr("sparda_core.kernels.pool.gpu.tiles.tile_blocks", lambda *_: 1)
    spec, at = BlockSpec(block=16, window=8, stride=2, local=1, budget=6), (16 * blocks + 3,)
    counts = entry_counts(at, spec, 0)
    entries, query = keys(5, counts, 1, WIDTH, torch.float32), randn(6, 1, 1, WIDTH)
    out = poisoned(1, 1, spec.block_count(at[0] + 1))
    forecast_block_scores(query, entries, positions(at), spec, 0, out)
    want = forecast_reference(query.double()[:, :, None], as_view(entries, counts), place(at), spec)
    assert_scores(out, want, at, spec.block, TOLERANCE)


@pytest.mark.parametrize("name", ["forecast", "query"])
@pytest.mark.parametrize("tile", [1, 2, 8])
def test_blocks_whose_best_key_is_one_score_the_same_to_the_bit(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else which of the two is chosen would depend on where a tile ends, and that on how many rows there are."""
    monkeypatch.setattr("sparda_core.kernels.pool.gpu.tiles.tile_blocks", lambda *_: tile)
    told_apart = sums_by_shape(monkeypatch)
    spec, rows, width = BlockSpec(block=16, window=8, stride=4, local=1, budget=6), 64 if ON_GPU else 1, 60
    heads, group = (4, 8) if ON_GPU else (1, 3)
    blocks = 24 if ON_GPU else 10
    at = (16 * blocks + 15,) * rows
    counts = entry_counts(at, spec, 0)
    entries = keys(5, counts, heads, width, torch.float32)
    query = randn(6, rows, heads * (group if name == "query" else 1), width)
    wanted = query.view(rows, heads, -1, width).sum(2)
    for block in range(2, blocks + 1, 2):
        # Its window touches both this block and the one before, and nothing near it scores as high.
        entries[:, :, 4 * block - 1] += 8 * wanted / wanted.norm(dim=-1, keepdim=True)
    out = poisoned(rows, heads, blocks + 1)
    if name == "forecast":
        forecast_block_scores(query, entries, positions(at), spec, 0, out)
    else:
        scratch = query_scratch(
            places=rows, q_heads=query.shape[1], kv_heads=heads, entries=entries.shape[2], device=DEVICE
        )
        query_block_scores(query, entries, positions(at), spec, 0, out, scratch)
    pairs = out[:, :, 1 : blocks + 1].reshape(rows, heads, -1, 2)
    assert torch.equal(pairs[..., 0], pairs[..., 1])
    assert ON_GPU or told_apart[0] > 0


def sums_by_shape(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the interpreter round as a GPU does, where the order of a sum follows from its shape; counts the sums."""
    seen = [0]
    if ON_GPU:
        return seen

    whole = tl.sum

    def rounded(values: Any, axis: int) -> Any:
        seen[0] += 1
        return whole(values, axis=axis) * (1 + 2e-6 * len(values.shape))

    monkeypatch.setattr(tl, "sum", rounded)
    return seen


def test_an_entry_that_reaches_two_blocks_ahead_is_refused() -> None:
    spec = BlockSpec(block=16, window=32, stride=8, local=2, budget=6)
    entries, query, out = keys(5, [9], 1, WIDTH, torch.float32), randn(6, 1, 1, WIDTH), poisoned(1, 1, 9)
    with pytest.raises(ConfigError, match=r"window=32 must be <= block \+ stride = 24 on a GPU.*or run on a CPU"):
        forecast_block_scores(query, entries, positions((99,)), spec, 0, out)
    scratch = query_scratch(places=1, q_heads=1, kv_heads=1, entries=20, device=DEVICE)
    with pytest.raises(ConfigError, match=r"window=32 must be <= block \+ stride"):
        query_block_scores(query, entries, positions((99,)), spec, 0, out, scratch)
