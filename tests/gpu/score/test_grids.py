"""What the work of scoring says of thread blocks is what is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sparda_core.facts import steady_facts
from sparda_core.kernels.pool import gpu as pool
from sparda_core.kernels.pool.tiles import LEAST_TILE, SMS, TILE_BYTES, block_bytes, tile_blocks
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_forecast.work import work as forecast_work
from sparda_core.kernels.score_proxy.gpu import proxy_block_scores
from sparda_core.kernels.score_proxy.work import work as proxy_work
from sparda_core.kernels.score_query import gpu as score_query
from sparda_core.kernels.score_query.gpu import QueryScratch, query_block_scores
from sparda_core.kernels.score_query.splits import MOST_SPLITS
from sparda_core.kernels.score_query.work import work as query_work
from sparda_core.plan import Op
from sparda_core.shapes import SHAPES, BlockSpec
from sparda_core.work import WorkContext
from tests.gpu.score.cases import positions
from tests.gpu_env import DEVICE

SHAPE, SPEC = SHAPES["minicpm4.1-8b"], BlockSpec(budget=96, local=32)


class Launches:
    """Stands in for kernels and keeps their grids."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *_, **__: None


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    seen = Launches()
    monkeypatch.setattr(pool, "_pooled_dots_kernel", seen)
    for name in ("_logits_kernel", "_shares_kernel"):
        monkeypatch.setattr(score_query, name, seen)
    for module in (pool, score_query):
        monkeypatch.setattr(module, "sm_count", lambda device: SMS)
    return seen


def unread(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor of any size in no memory: all its rows are one."""
    return torch.empty(size[-1], dtype=dtype, device=DEVICE).expand(size)


@pytest.mark.parametrize("context", [2**12, 2**15, 2**17])
@pytest.mark.parametrize("batch", [1, 2, 16, 64])
def test_thread_blocks_and_launches_of_the_work_are_those_of_the_grid(
    batch: int, context: int, launches: Launches
) -> None:
    facts = steady_facts(shape=SHAPE, spec=SPEC, batch=batch, context=context, churn=0.1)
    known, op = WorkContext(shape=SHAPE, spec=SPEC), Op(kind="score", layer=1, source=1)
    at = positions([context - 1] * batch)
    entries = unread(batch, SHAPE.kv_heads, SPEC.entry_count(context), SHAPE.head_dim)
    out = unread(batch, SHAPE.kv_heads, SPEC.block_count(context), dtype=torch.float32)

    def total(grids: list[tuple[int, ...]]) -> Any:
        return grids[0][0] * grids[0][1], len(grids)

    forecast_block_scores(unread(batch, SHAPE.kv_heads, SHAPE.head_dim), entries, at, SPEC, 0, out)
    work = forecast_work(op, facts, known)
    assert (work.ctas, work.launches) == total(launches.grids)
    launches.grids.clear()
    partial, proxy = unread(batch, SHAPE.kv_heads, context, 32), unread(batch, SHAPE.kv_heads, 32)
    proxy_block_scores(proxy, partial, at, SPEC, 0, 1.0, out)
    work = proxy_work(op, facts, known, channels=32)
    assert (work.ctas, work.launches) == total(launches.grids)
    launches.grids.clear()
    rows = (batch, SHAPE.kv_heads)
    scratch = QueryScratch(
        logits=unread(*rows, entries.shape[2], SHAPE.group, dtype=torch.float32),
        peak=unread(*rows, MOST_SPLITS, SHAPE.group, dtype=torch.float32),
        total=unread(*rows, MOST_SPLITS, SHAPE.group, dtype=torch.float32),
    )
    query_block_scores(unread(batch, SHAPE.q_heads, SHAPE.head_dim), entries, at, SPEC, 0, out, scratch)
    work = query_work(op, facts, known)
    assert (work.ctas, work.launches) == total(launches.grids)


def test_tiles_fill_the_device_and_fit_their_bytes() -> None:
    each = block_bytes(4, 128, 2)
    assert each == 4 * 256
    for rows in (2, 8, 32, 128):
        tile = tile_blocks(2049, rows, each)
        assert tile * each <= TILE_BYTES
        assert -(-2049 // tile) * rows >= 2 * SMS or tile == LEAST_TILE
    assert tile_blocks(2049, 32, each) == 32
