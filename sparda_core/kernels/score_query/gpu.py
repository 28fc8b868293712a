"""Scoring with the true query on a GPU, in two launches: logits with each split's softmax, then shares pooled."""

from __future__ import annotations

import attrs
import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.device import padded, sm_count
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.pool import tiles
from sparda_core.kernels.pool.gpu import (
    best_of_blocks,
    check_scoring,
    check_spill,
    edge_keys,
    inside,
    known,
    visible_keys,
)
from sparda_core.kernels.score_query import splits
from sparda_core.shapes import BlockSpec

#: Narrowest operand of a tensor-core product: smaller groups are padded to it.
_LEAST_GROUP = 16
_LOG2_E = 1.4426950408889634


@attrs.frozen(kw_only=True, eq=False)
class QueryScratch:
    """What the first launch leaves for the second. One serves every layer of a step, as layers score in turn.

    logits  float32 [B, Hk, C, G], base-2 logits of the visible entries
    peak    float32 [B, Hk, MOST_SPLITS, G], each split's largest logit
    total   float32 [B, Hk, MOST_SPLITS, G], each split's sum of 2 ** (logit - peak)
    """

    logits: torch.Tensor
    peak: torch.Tensor
    total: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return self.logits.nbytes + self.peak.nbytes + self.total.nbytes


def query_scratch(*, places: int, q_heads: int, kv_heads: int, entries: int, device: torch.device) -> QueryScratch:
    """Scratch for `places` rows of at most `entries` entries."""

    def room(middle: int) -> torch.Tensor:
        return torch.empty((places, kv_heads, middle, q_heads // kv_heads), dtype=torch.float32, device=device)

    return QueryScratch(logits=room(entries), peak=room(splits.MOST_SPLITS), total=room(splits.MOST_SPLITS))


def query_block_scores(
    query: torch.Tensor, entries: torch.Tensor, position: torch.Tensor, spec: BlockSpec, unseen: int,
    out: torch.Tensor, scratch: QueryScratch, *, early: int = AT_END,
) -> None:  # fmt: skip
    """See `score_query.reference.query_block_scores`, for one query a row; two launches.

    query     [B, Hq, D], post-RoPE, of the entries' dtype
    entries   [B, Hk, C, D]; undefined beyond entry_count(position + 1 - unseen)
    position  int32 [B]; -1: nothing is written for the place
    unseen    newest tokens that the entries do not cover
    out       float32 [B, Hk, M], written up to each row's current block and no further
    scratch   for at least B places and C entries; overwritten
    early     see `kernels.early`; position must not be the previous kernel's doing
    Products of the inputs' dtype, sums and softmax in float32. Raises ConfigError on what does not fit.
    """
    heads = check_scoring(query, entries, position, out)
    group, width, held = query.shape[1] // heads, query.shape[2], entries.shape[2]
    _check_scratch(query, entries, scratch)
    spill = check_spill(spec.window, spec.stride, spec.entries_per_block)
    rows, sms = query.shape[0] * heads, sm_count(query.device)
    span = splits.split_entries(held, rows, sms)
    sizes = {"HEADS": heads, "GROUP": group, "WINDOW": spec.window, "STRIDE": spec.stride, "SPAN": span}
    _logits_kernel[(max(1, triton.cdiv(held, span)), rows)](
        query, entries, position, scratch.logits, scratch.peak, scratch.total,
        query.stride(0), query.stride(1), *entries.stride()[:3], *scratch.logits.stride()[:2],
        *scratch.peak.stride()[:2], held, unseen, float(width) ** -0.5 * _LOG2_E,
        GROUP_PAD=padded(group, _LEAST_GROUP), WIDTH=width, WIDTH_PAD=padded(width, 16), TILE=splits.TILE,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=4, num_stages=splits.STAGES,
        **sizes, **launch_early(early),
    )  # fmt: skip
    reach, blocks = spec.entries_per_block, out.shape[2]
    tile = tiles.tile_blocks(blocks, rows, tiles.block_bytes(reach, group, 4), sms)
    _shares_kernel[(triton.cdiv(blocks, tile), rows)](
        position, scratch.logits, scratch.peak, scratch.total, out, *scratch.logits.stride()[:2],
        *scratch.peak.stride()[:2], out.stride(0), out.stride(1), held, blocks, unseen,
        GROUP_PAD=padded(group), SPLITS=padded(triton.cdiv(held, span)), REACH=reach, REACH_PAD=padded(reach),
        SPILL=spill, SPILL_PAD=padded(max(1, spill)), TILE=tile, num_warps=4, **sizes, **launch_early(early),
    )  # fmt: skip


def _check_scratch(query: torch.Tensor, entries: torch.Tensor, scratch: QueryScratch) -> None:
    batch, heads, held, _ = entries.shape
    have = tuple(scratch.logits.shape)
    if have[0] < batch or have[1] != heads or have[2] < held or have[3] * heads != query.shape[1]:
        want = [batch, heads, held, query.shape[1] // heads]
        raise ConfigError(f"scratch holds logits {list(have)}; want at least {want}: make it with query_scratch")
    if query.dtype != entries.dtype:
        raise ConfigError(f"query is {query.dtype}, entries are {entries.dtype}; a product needs one dtype")


@triton.jit
def _logits_kernel(
    query, entries, position, logits, peak, total, query_b, query_h, entries_b, entries_h, entries_n,
    logits_b, logits_h, peak_b, peak_h, held, unseen, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(1) // HEADS).to(tl.int64)
    i_h = (tl.program_id(1) % HEADS).to(tl.int64)
    first = tl.program_id(0) * SPAN
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    visible = visible_keys(at, unseen, held, WINDOW, STRIDE)
    if (at >= 0) & (first < visible):
        o_g = tl.arange(0, GROUP_PAD)
        o_d = tl.arange(0, WIDTH_PAD)
        m_g = o_g < GROUP
        m_d = o_d < WIDTH
        p_query = query + i_b * query_b + (i_h * GROUP + o_g)[None, :] * query_h + o_d[:, None]
        b_query = tl.load(p_query, mask=m_g[None, :] & m_d[:, None], other=0.0)  # [WIDTH_PAD, GROUP_PAD]
        p_entries = entries + i_b * entries_b + i_h * entries_h
        p_logits = logits + i_b * logits_b + i_h * logits_h
        b_peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        b_total = tl.zeros([GROUP_PAD], tl.float32)
        for start in range(first, tl.minimum(first + SPAN, visible), TILE):
            o_n = start + tl.arange(0, TILE)
            m_n = o_n < visible
            p_tile = p_entries + (o_n.to(tl.int64) * entries_n)[:, None] + o_d[None, :]
            b_entries = tl.load(p_tile, mask=m_n[:, None] & m_d[None, :], other=0.0)
            b_logits = tl.dot(b_entries, b_query, input_precision=PRECISION) * scale  # [TILE, GROUP_PAD]
            p_out = p_logits + o_n.to(tl.int64)[:, None] * GROUP + o_g[None, :]
            tl.store(p_out, b_logits, mask=m_n[:, None] & m_g[None, :])
            b_logits = tl.where(m_n[:, None], b_logits, float("-inf"))
            # Every tile has a visible entry, so the peak is a number from the first one on.
            b_new = tl.maximum(b_peak, tl.max(b_logits, axis=0))
            b_total = b_total * tl.exp2(b_peak - b_new) + tl.sum(tl.exp2(b_logits - b_new[None, :]), axis=0)
            b_peak = b_new
        o_split = i_b * peak_b + i_h * peak_h + tl.program_id(0) * GROUP + o_g
        tl.store(peak + o_split, b_peak, mask=m_g)
        tl.store(total + o_split, b_total, mask=m_g)


@triton.jit
def _shares_kernel(
    position, logits, peak, total, out, logits_b, logits_h, peak_b, peak_h, out_b, out_h, held, blocks, unseen,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    SPAN: tl.constexpr, SPLITS: tl.constexpr, REACH: tl.constexpr, REACH_PAD: tl.constexpr, SPILL: tl.constexpr,
    SPILL_PAD: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(1) // HEADS).to(tl.int64)
    i_h = (tl.program_id(1) % HEADS).to(tl.int64)
    first = tl.program_id(0) * TILE
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    if (at >= 0) & (first * (REACH * STRIDE) <= at):
        visible = visible_keys(at, unseen, held, WINDOW, STRIDE)
        o_g = tl.arange(0, GROUP_PAD)
        m_g = o_g < GROUP
        o_s = tl.arange(0, SPLITS)
        m_s = (o_s * SPAN < visible)[:, None] & m_g[None, :]
        o_split = i_b * peak_b + i_h * peak_h + o_s[:, None] * GROUP + o_g[None, :]
        b_peak = tl.load(peak + o_split, mask=m_s, other=float("-inf"))
        b_total = tl.load(total + o_split, mask=m_s, other=0.0)

        p_logits = logits + i_b * logits_b + i_h * logits_h
        o_m = tl.arange(0, TILE)
        o_r = tl.arange(0, REACH_PAD)
        o_b = first + o_m
        o_n = o_b[:, None] * REACH + o_r[None, :]
        m_n = inside(o_m, o_r, TILE, REACH, SPILL) & (o_n < visible)
        p_tile = p_logits + (o_n.to(tl.int64) * GROUP)[:, :, None] + o_g[None, None, :]
        b_logits = tl.load(p_tile, mask=m_n[:, :, None] & m_g[None, None, :], other=float("-inf"))
        if SPILL > 0:
            o_e, m_edge = edge_keys(first, tl.arange(0, 2 * SPILL_PAD), TILE, REACH, SPILL)
            m_edge = m_edge & (o_e < visible)
            p_edge = p_logits + (o_e.to(tl.int64) * GROUP)[:, None] + o_g[None, :]
            b_edge = tl.load(p_edge, mask=m_edge[:, None] & m_g[None, :], other=float("-inf"))

        # Padded heads, and rows that see no entry, have the peak 0 and no share.
        b_top = tl.max(b_peak, axis=0)
        b_top = tl.where(b_top == float("-inf"), 0.0, b_top)
        b_whole = tl.sum(b_total * tl.exp2(b_peak - b_top[None, :]), axis=0)
        b_share = tl.where(b_whole == 0.0, 0.0, 1.0 / tl.where(b_whole == 0.0, 1.0, b_whole))  # [GROUP_PAD]
        b_score = known(tl.sum(tl.exp2(b_logits - b_top[None, None, :]) * b_share[None, None, :], axis=2), m_n)
        edge_score = tl.full([2], float("-inf"), tl.float32)
        if SPILL > 0:
            b_edge = tl.exp2(b_edge - b_top[None, :]) * b_share[None, :]  # [2 * SPILL_PAD, GROUP_PAD]
            edge_score = known(tl.sum(b_edge, axis=1), m_edge)  # type: ignore[possibly-undefined]
        b_best = best_of_blocks(b_score, edge_score, REACH, SPILL)
        m_b = (o_b < blocks) & (o_b * (REACH * STRIDE) <= at)
        tl.store(out + i_b * out_b + i_h * out_h + o_b, b_best, mask=m_b)
