"""From keys to attention on a CPU in every shape: entries, scores, choice, blocks moved and attended, against loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.kernels.attend_dense.cpu import attend_dense
from sparda_core.kernels.compress.cpu import compress
from sparda_core.kernels.compress.reference import compress as compress_reference
from sparda_core.kernels.gather.cpu import gather_blocks
from sparda_core.kernels.score_forecast.cpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.kernels.topk.reference import choose_blocks as choose_reference
from sparda_core.layer_view import EntryView
from sparda_core.runtimes.views import visible_tokens
from sparda_core.selection import check_selection
from tests.profiles import share
from tests.properties.shapes import BLOCKS, EDGES, GRIDS, GROUPS, HEAD_DIMS, KV_HEADS, MOST_ROWS, TABLE, Shape, shapes

NAN = float("nan")


def test_the_table_has_every_value_of_every_axis() -> None:
    for axis, values in (
        ("kv_heads", KV_HEADS), ("group", GROUPS), ("head_dim", HEAD_DIMS), ("block", BLOCKS), ("grid", GRIDS),
    ):  # fmt: skip
        assert {getattr(shape, axis) for shape in TABLE} == set(values), axis
    assert {edge for shape in TABLE for edge in shape.edges} == set(EDGES)
    assert {len(shape.edges) for shape in TABLE} == set(range(1, MOST_ROWS + 1))


class Batch(NamedTuple):
    """Keys and values [B, Hk, N, D], NaN beyond a row's tokens; the newest token's query [B, Hq, 1, D]."""

    keys: torch.Tensor
    values: torch.Tensor
    query: torch.Tensor
    positions: torch.Tensor


def batch_of(shape: Shape) -> Batch:
    """Float64 views whose strides are not those of their shape."""
    draw = torch.Generator().manual_seed(shape.seed)
    rows, most = len(shape.tokens), max(*shape.tokens, 1)

    def strided(*size: int) -> torch.Tensor:
        return torch.randn(*size[:-1], size[-1] + 3, generator=draw, dtype=torch.float64)[..., : size[-1]]

    keys, values = (strided(rows, shape.kv_heads, most, shape.head_dim) for _ in range(2))
    for row, tokens in enumerate(shape.tokens):
        keys[row, :, tokens:] = values[row, :, tokens:] = NAN
    query = strided(rows, 1, shape.kv_heads * shape.group, shape.head_dim).transpose(1, 2)
    return Batch(keys, values, query, torch.tensor(shape.tokens)[:, None] - 1)


def entries_of(shape: Shape, batch: Batch) -> EntryView:
    """Entries of every row in a larger buffer, NaN where no row has any; held to the reference on the way."""
    counts = [shape.spec.entry_count(tokens) for tokens in shape.tokens]
    rows = len(counts)
    buffer = torch.full((rows + 2, shape.kv_heads, max(counts) + 2, shape.head_dim), NAN, dtype=torch.float64)
    places = torch.arange(rows).flip(0) + 1
    for row, (tokens, count) in enumerate(zip(shape.tokens, counts, strict=True)):
        window, stride = shape.grid
        made = compress(batch.keys[row, :, :tokens], window=window, stride=stride)
        torch.testing.assert_close(made, compress_reference(batch.keys[row, :, :tokens], window=window, stride=stride))
        assert made.shape[1] == count
        buffer[places[row], :, :count] = made
    return EntryView(buffer=buffer, rows=places, counts=torch.tensor(counts))


def blocks_of(shape: Shape, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Every row's tokens appended to blocks of a pool and moved to others: pool, and [B, Hk, blocks] where they lie."""
    spec, heads = shape.spec, shape.kv_heads
    blocks = [spec.block_count(tokens) for tokens in shape.tokens]
    total = sum(blocks) * heads
    draw = np.random.default_rng(shape.seed)
    first, then = (draw.permutation(total + 2)[:total] for _ in range(2))
    table = np.full((len(blocks), heads, max(*blocks, 1)), -1, np.int64)
    pool, moved = (np.full((total + 2, 2, spec.block, shape.head_dim), np.nan) for _ in range(2))
    order, at = [], 0
    for row, count in enumerate(blocks):
        for head in range(heads):
            table[row, head, :count] = np.arange(at, at + count)
            at += count
        tokens = np.arange(shape.tokens[row])
        physical = first[table[row][:, tokens // spec.block]][None] if count else np.empty((1, heads, 0), np.int64)
        offsets = (tokens % spec.block)[None]
        part = slice(0, shape.tokens[row])
        given = (batch.keys[row : row + 1, :, part].numpy(), batch.values[row : row + 1, :, part].numpy())
        append_tokens(pool, physical, offsets, *given)
        order += [index for index in table[row].ravel().tolist() if index >= 0]
    gather_blocks(pool, moved, first[order], then[order], 0, total)
    return moved, np.where(table >= 0, then[np.maximum(table, 0)], -1) if total else table


def by_hand(shape: Shape, batch: Batch, chosen: torch.Tensor) -> torch.Tensor:
    """Softmax over the tokens of chosen blocks, row by row, head by head; zeros for a row without tokens."""
    out = torch.zeros_like(batch.query)
    for row, tokens in enumerate(shape.tokens):
        for head in range(shape.kv_heads * shape.group if tokens else 0):
            of = head // shape.group
            seen = torch.isin(torch.arange(tokens) // shape.block, chosen[row, of, 0])
            keys, values = (part[row, of, :tokens][seen] for part in (batch.keys, batch.values))
            weights = torch.softmax(keys @ batch.query[row, head, 0] / shape.head_dim**0.5, 0)
            out[row, head, 0] = weights @ values
    return out


def whole_way(shape: Shape) -> None:
    """Each kernel against its reference, the last against loops."""
    batch, spec = batch_of(shape), shape.spec
    entries = entries_of(shape, batch)
    forecast = batch.query[:, :: shape.group]
    scores = forecast_block_scores(forecast, entries, batch.positions, spec)
    torch.testing.assert_close(scores, forecast_reference(forecast, entries, batch.positions, spec))
    shares = query_block_scores(batch.query, entries, batch.positions, spec)
    torch.testing.assert_close(shares, query_reference(batch.query, entries, batch.positions, spec))
    chosen = choose_blocks(shares, batch.positions, spec)
    assert torch.equal(chosen, choose_reference(shares, batch.positions, spec))
    check_selection(chosen.numpy(), spec=spec, positions=batch.positions.numpy())
    pool, table = blocks_of(shape, batch)
    picked = np.take_along_axis(table, np.maximum(chosen[:, :, 0].numpy(), 0).astype(np.int64), -1)
    physical = np.where(chosen[:, :, 0].numpy() >= 0, picked, -1)[:, :, None]
    tokens = visible_tokens(chosen.numpy(), batch.positions.numpy(), spec.block)
    got = attend_blocks(batch.query, torch.from_numpy(pool), torch.from_numpy(physical), torch.from_numpy(tokens))
    torch.testing.assert_close(got, by_hand(shape, batch, chosen), rtol=1e-9, atol=1e-9)
    longest = int(torch.tensor(shape.tokens).argmax())
    if (most := shape.tokens[longest]) > 0:
        one = [part[longest : longest + 1] for part in (batch.query, batch.keys, batch.values)]
        dense = attend_dense(one[0], one[1][:, :, :most], one[2][:, :, :most], most - 1)
        every = torch.arange(spec.block_count(most)).expand(len(shape.tokens), shape.kv_heads, 1, -1)
        want = by_hand(shape, batch, every)[longest : longest + 1]
        torch.testing.assert_close(dense, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", TABLE, ids=str)
def test_every_shape_of_the_table_goes_the_whole_way(shape: Shape) -> None:
    whole_way(shape)


@given(shape=shapes())
@settings(max_examples=share(8))
def test_any_mixture_of_shapes_goes_the_whole_way(shape: Shape) -> None:
    whole_way(shape)


def test_the_whole_way_notices_one_block_too_few() -> None:
    shape = TABLE[4]
    batch, spec = batch_of(shape), shape.spec
    shares = query_block_scores(batch.query, entries_of(shape, batch), batch.positions, spec)
    chosen = choose_blocks(shares, batch.positions, spec)
    fewer = chosen.clone()
    fewer[..., 0] = -1
    assert not torch.allclose(by_hand(shape, batch, chosen), by_hand(shape, batch, fewer))
