"""Dot products with a row's keys, pooled to blocks as they come. The one kernel behind two ways of scoring."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device, sm_count
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.pool import tiles


def pooled_dots(
    query: torch.Tensor, keys: torch.Tensor, position: torch.Tensor, out: torch.Tensor, *,
    block: int, window: int, stride: int, unseen: int, spill: int | None = None, scale: float = 1.0,
    early: int = AT_END,
) -> None:  # fmt: skip
    """Score every block up to each row's current one by its best key; one launch, every key read once.

    query     float [B, Hq, w]; the group's Hq / Hk queries are added up in float32 and multiplied by `scale`
    keys      float [B, Hk, N, w], key n covers tokens stride * n .. stride * n + window - 1
    position  int32 [B], of each place's token; -1: nothing is written
    out       float32 [B, Hk, M]; block b takes the largest of keys R * b - spill .. R * b + R - 1 with R = block /
              stride, among those whose last token is at or before position - unseen (a NaN product does not
              count); -inf without one. Blocks after the current one are left as they are.
    block     tokens a block, a multiple of `stride`
    spill     keys before a block that count for it, at most R; None: those that touch it, window / stride - 1
    early     see `kernels.early`; position must not be the previous kernel's doing, nor keys, where unseen > 0
    Last axes must be contiguous, leading strides are free. Raises ConfigError on what does not fit.
    """
    heads = check_scoring(query, keys, position, out)
    group, width, reach, blocks = query.shape[1] // heads, keys.shape[3], block // stride, out.shape[2]
    spill = check_spill(window, stride, reach) if spill is None else spill
    rows, each = query.shape[0] * heads, tiles.block_bytes(reach, width, keys.element_size())
    tile = tiles.tile_blocks(blocks, rows, each, sm_count(keys.device))
    _pooled_dots_kernel[(triton.cdiv(blocks, tile), rows)](
        query, keys, position, out, query.stride(0), query.stride(1), *keys.stride()[:3], out.stride(0), out.stride(1),
        keys.shape[2], blocks, unseen, scale, HEADS=heads, GROUP=group, GROUP_PAD=padded(group), WIDTH=width,
        WIDTH_PAD=padded(width), REACH=reach, REACH_PAD=padded(reach), SPILL=spill, SPILL_PAD=padded(max(1, spill)),
        WINDOW=window, STRIDE=stride, TILE=tile, OLD=int(unseen > 0), num_warps=tiles.WARPS, **launch_early(early),
    )  # fmt: skip


def check_spill(window: int, stride: int, reach: int) -> int:
    """Keys before a block that touch it; raises ConfigError where they lie in more than the block before."""
    spill = window // stride - 1
    if spill > reach:
        raise ConfigError(
            f"window={window} must be <= block + stride = {(reach + 1) * stride} on a GPU, so that an entry reaches "
            "into the next block and no further: narrow the window, widen the block, or run on a CPU"
        )
    return spill


def check_scoring(query: torch.Tensor, keys: torch.Tensor, position: torch.Tensor, out: torch.Tensor) -> int:
    """KV heads of what is to be scored; raises ConfigError on shapes, dtypes and strides that do not fit."""
    batch, _, width = query.shape
    require_shape(keys, "keys", B=batch, Hk=None, N=None, w=width)
    heads = keys.shape[1]
    require_shape(out, "out", B=batch, Hk=heads, M=None)
    require_shape(position, "position", B=batch)
    if query.shape[1] % heads:
        raise ConfigError(f"query has {query.shape[1]} heads, not a multiple of kv_heads={heads}")
    if position.dtype != torch.int32 or out.dtype != torch.float32:
        raise ConfigError(f"position is {position.dtype}, out {out.dtype}; want int32 and float32")
    for name, tensor in (("query", query), ("keys", keys), ("position", position), ("out", out)):
        if tensor.stride(-1) != 1:
            raise ConfigError(f"the last axis of {name} has stride {tensor.stride(-1)}; it must be contiguous")
    require_device(query=query, keys=keys, position=position, out=out)
    return heads


@triton.jit
def visible_keys(at, unseen, held, WINDOW: tl.constexpr, STRIDE: tl.constexpr):
    """Keys whose last token is at or before `at - unseen`, `at` >= 0: full windows in the tokens seen."""
    return tl.minimum(tl.maximum(at + 1 - unseen - WINDOW + STRIDE, 0) // STRIDE, held)


@triton.jit
def inside(o_m, o_r, TILE: tl.constexpr, REACH: tl.constexpr, SPILL: tl.constexpr):
    """Which keys [TILE, REACH_PAD] a tile scores itself: not the last SPILL, which reach into the next tile."""
    return (o_r < REACH)[None, :] & ((o_m < TILE - 1)[:, None] | (o_r < REACH - SPILL)[None, :])


@triton.jit
def edge_keys(first, o_s, TILE: tl.constexpr, REACH: tl.constexpr, SPILL: tl.constexpr):
    """Keys at a tile's edges: the SPILL before it in the first half of `o_s`, its own last SPILL in the second.

    Two tiles score these, and their sums must be the same to the bit: a key that is the best of two blocks makes them
    equal, and equal blocks go by their id. So both tiles score them here, in sums of one shape, and nowhere else.
    Returns (index, whether it is one of them).
    """
    HALF: tl.constexpr = o_s.shape[0] // 2
    o_e = (first + o_s // HALF * TILE) * REACH - SPILL + o_s % HALF
    return o_e, (o_s % HALF < SPILL) & (o_e >= 0)


@triton.jit
def best_of_blocks(b_score, b_edge, REACH: tl.constexpr, SPILL: tl.constexpr):
    """Best key of each block: its own, and the last SPILL of the block before.

    b_score  [TILE, REACH_PAD], -inf where there is no key, and where `inside` says so
    b_edge   [2 * SPILL_PAD], of `edge_keys`; not looked at where there are none
    """
    TILE: tl.constexpr = b_score.shape[0]
    b_best = tl.max(b_score, axis=1)
    if SPILL > 0:
        o_m = tl.arange(0, TILE)
        o_r = tl.arange(0, b_score.shape[1])
        before = tl.arange(0, b_edge.shape[0]) < b_edge.shape[0] // 2
        b_last = tl.max(tl.where((o_r >= REACH - SPILL)[None, :], b_score, float("-inf")), axis=1)  # [TILE]
        b_before = tl.gather(b_last, tl.maximum(o_m - 1, 0), axis=0)
        b_ahead = tl.max(tl.where(before, b_edge, float("-inf")), axis=0)
        b_before = tl.where(o_m == 0, b_ahead, b_before)
        b_own = tl.max(tl.where(before, float("-inf"), b_edge), axis=0)
        b_best = tl.maximum(tl.maximum(b_best, b_before), tl.where(o_m == TILE - 1, b_own, float("-inf")))
    return b_best


@triton.jit
def known(b_score, m_n):
    """Scores of keys that exist; -inf where there is none, and for a NaN."""
    return tl.where(m_n & (b_score == b_score), b_score, float("-inf"))


@triton.jit
def _pooled_dots_kernel(
    query, keys, position, out, query_b, query_h, keys_b, keys_h, keys_n, out_b, out_h, held, blocks, unseen, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
    REACH: tl.constexpr, REACH_PAD: tl.constexpr, SPILL: tl.constexpr, SPILL_PAD: tl.constexpr,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr, OLD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(1) // HEADS).to(tl.int64)
    i_h = (tl.program_id(1) % HEADS).to(tl.int64)
    first = tl.program_id(0) * TILE
    at = tl.load(position + i_b)
    if OLD == 0:
        wait_for_kernel_ahead(EARLY)
    visible = visible_keys(at, unseen, held, WINDOW, STRIDE)  # none in an inactive place
    o_d = tl.arange(0, WIDTH_PAD)
    m_d = o_d < WIDTH
    p_keys = keys + i_b * keys_b + i_h * keys_h
    o_m = tl.arange(0, TILE)
    o_r = tl.arange(0, REACH_PAD)
    o_b = first + o_m
    o_n = o_b[:, None] * REACH + o_r[None, :]
    m_n = inside(o_m, o_r, TILE, REACH, SPILL) & (o_n < visible)
    p_tile = p_keys + (o_n.to(tl.int64) * keys_n)[:, :, None] + o_d[None, None, :]
    b_keys = tl.load(p_tile, mask=m_n[:, :, None] & m_d[None, None, :], other=0.0)  # [TILE, REACH_PAD, WIDTH_PAD]
    if SPILL > 0:
        o_e, m_edge = edge_keys(first, tl.arange(0, 2 * SPILL_PAD), TILE, REACH, SPILL)
        m_edge = m_edge & (o_e < visible)
        p_edge = p_keys + (o_e.to(tl.int64) * keys_n)[:, None] + o_d[None, :]
        b_key = tl.load(p_edge, mask=m_edge[:, None] & m_d[None, :], other=0.0)  # [2 * SPILL_PAD, WIDTH_PAD]
    if OLD > 0:
        # Keys that lack the newest tokens were complete a step ago: only the query is the kernel ahead's.
        wait_for_kernel_ahead(EARLY)
    if (at >= 0) & (first * (REACH * STRIDE) <= at):
        o_g = tl.arange(0, GROUP_PAD)
        p_query = query + i_b * query_b + (i_h * GROUP + o_g)[:, None] * query_h + o_d[None, :]
        b_query = tl.load(p_query, mask=(o_g < GROUP)[:, None] & m_d[None, :], other=0.0).to(tl.float32)
        b_query = tl.sum(b_query, axis=0) * scale  # [WIDTH_PAD]
        b_score = known(tl.sum(b_keys.to(tl.float32) * b_query[None, None, :], axis=2), m_n)
        b_edge = tl.full([2], float("-inf"), tl.float32)
        if SPILL > 0:
            b_edge = tl.sum(b_key.to(tl.float32) * b_query[None, :], axis=1)  # type: ignore[possibly-undefined]
            b_edge = known(b_edge, m_edge)  # type: ignore[possibly-undefined]
        b_best = best_of_blocks(b_score, b_edge, REACH, SPILL)
        m_b = (o_b < blocks) & (o_b * (REACH * STRIDE) <= at)
        tl.store(out + i_b * out_b + i_h * out_h + o_b, b_best, mask=m_b)
