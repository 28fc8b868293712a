"""Odd shapes and poisoned memory for the kernels' tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

NAN, INF = float("nan"), float("inf")

seeds = st.integers(0, 2**31)
kv_heads = st.sampled_from([1, 2, 3, 5])
groups = st.sampled_from([1, 3, 4, 7])
head_dims = st.sampled_from([32, 60, 64, 128])


@st.composite
def specs(draw: st.DrawFn) -> BlockSpec:
    """Lawful specs with blocks of 16 to 128 tokens, windows shorter and longer than a block among them."""
    stride = draw(st.sampled_from([4, 8, 16]))
    block = stride * draw(st.integers(-(-16 // stride), 128 // stride))
    window = stride * draw(st.integers(1, 4))
    sink, local = draw(st.integers(0, 3)), draw(st.integers(0, 4)) + -(-(window - 1) // block)
    budget = sink + local + 1 + draw(st.integers(0, 6))
    return BlockSpec(block=block, window=window, stride=stride, sink=sink, local=local, budget=budget)


@st.composite
def lengths(draw: st.DrawFn, spec: BlockSpec, rows: int) -> list[int]:
    """Tokens per row, edges preferred; 0 is an inactive row."""
    edges = [0, 1, *(edge + shift for edge in (spec.window, spec.block, 2 * spec.block) for shift in (-1, 0, 1))]
    one = st.one_of(st.sampled_from(edges), st.integers(1, 5 * spec.block))
    return draw(st.lists(one, min_size=rows, max_size=rows))


def generator(seed: int) -> torch.Generator:
    """A stream of its own for every test."""
    return torch.Generator().manual_seed(seed)


def randn(seed: int, *size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal values that depend on the seed alone."""
    return torch.randn(size, generator=generator(seed), dtype=dtype)


def entry_view(
    seed: int, counts: Sequence[int], *, heads: int, width: int, dtype: torch.dtype = torch.float64, spare: int = 3
) -> EntryView:
    """Rows scattered over a larger buffer; everything that no row owns is NaN or infinite."""
    rows = torch.randperm(len(counts) + 2, generator=generator(seed))[: len(counts)]
    buffer = torch.full((len(counts) + 2, heads, max(counts, default=0) + spare, width), NAN, dtype=dtype)
    buffer[..., ::2] = INF
    for at, (row, count) in enumerate(zip(rows.tolist(), counts, strict=True)):
        buffer[row, :, :count] = randn(seed + at, heads, count, width).to(dtype)
    return EntryView(buffer=buffer, rows=rows, counts=torch.tensor(counts, dtype=torch.int64))


def last_positions(tokens: Sequence[int], queries: int = 1) -> torch.Tensor:
    """int64 [B, T]: the last `queries` positions of each row; negative before its start."""
    return torch.tensor(tokens, dtype=torch.int64)[:, None] - queries + torch.arange(queries)
