"""Decode attention on a GPU: one query token a row over its blocks, read where they lie.

A program takes one (row, KV head) and one piece of its list of blocks; the query heads of the group share
every tile it reads. Products are in the dtype of the inputs (float32 exactly), sums and partial results in
float32. Either the last program of a (row, head) to finish adds the pieces up, or a second launch does.
"""

from __future__ import annotations

import attrs
import torch
import triton
import triton.language as tl

from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError
from sparda_core.kernels.attend.splitting import MOST_SPLITS, Tuning, most_parts, split_count, tile_tokens
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device, sm_count
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec

# How the w-th block of a list is found: it is named by its place, by its logical id, or it is the w-th of the row.
_SLOTS, _PAGES, _ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _block_at(blocks, table, w, FIND: tl.constexpr, PAGE: tl.constexpr):
    """Index into the array of the w-th listed block, 64 bits; `blocks` and `table` begin at one (row, head)."""
    if FIND == _SLOTS:
        return tl.load(blocks + w).to(tl.int64)
    i_n = w
    if FIND == _PAGES:
        i_n = tl.load(blocks + w)
    i_p = tl.load(table + i_n // PAGE)
    return i_p.to(tl.int64) * PAGE + i_n % PAGE


@triton.jit
def _tokens_at(
    array, blocks, table, first, seen, s_n, s_t,
    FIND: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Where the keys of TOKENS tokens of a list begin, from its `first` on."""
    o_t = tl.arange(0, TOKENS)
    if BLOCK % TOKENS == 0:  # they lie in one block
        return array + _block_at(blocks, table, first // BLOCK, FIND, PAGE) * s_n + (first % BLOCK + o_t) * s_t
    # Lanes behind the end ask for the last block again, so that no entry behind the list is read.
    i_n = _block_at(blocks, table, tl.minimum(first + o_t, seen - 1) // BLOCK, FIND, PAGE)
    return array + i_n * s_n + ((first + o_t) % BLOCK) * s_t


@triton.jit
def _tokens_seen(at, listed, FIND: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens of the list of a row at position `at`; none where nobody is."""
    if FIND == _ALL:
        return at + 1
    blocks = tl.load(listed)
    return tl.where((at >= 0) & (blocks > 0), (blocks - 1) * BLOCK + at % BLOCK + 1, 0)


@triton.jit
def _write_out(out, mixed, total, o_g, o_d, m_gd, s_h):
    """Mixed values over their weights; 0 where no token was seen."""
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + o_g[:, None] * s_h + o_d[None, :], mixed.to(out.dtype.element_ty), mask=m_gd)


@triton.jit
def _attend_kernel(
    q, array, blocks, counts, table, position, out, mixed, stats, arrived, scale,
    s_qb, s_qh, s_n, s_kv, s_t, s_bb, s_bh, s_cb, s_ch, s_tb, s_th, s_ob, s_oh,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr, SPLITS: tl.constexpr, FUSED: tl.constexpr,
    FIND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    i_pair = tl.program_id(0).to(tl.int64)  # row * HEADS + head
    i_s = tl.program_id(1)  # piece
    i_b, i_h = i_pair // HEADS, i_pair % HEADS
    o_g, o_d, o_t = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TOKENS)
    m_d = o_d < D
    m_gd = (o_g < G)[:, None] & m_d[None, :]
    blocks += i_b * s_bb + i_h * s_bh
    table += i_b * s_tb + i_h * s_th
    out += i_b * s_ob + i_h * G * s_oh
    q += i_b * s_qb + i_h * G * s_qh

    seen = _tokens_seen(tl.load(position + i_b), counts + i_b * s_cb + i_h * s_ch, FIND, BLOCK)
    tiles = tl.cdiv(seen, TOKENS)
    each = tl.cdiv(tiles, SPLITS)
    first = i_s * each
    last = tl.minimum(first + each, tiles)

    b_q = tl.load(q + o_g[:, None] * s_qh + o_d[None, :], mask=m_gd, other=0.0)  # [GP, DP]
    top = tl.full([GP], float("-inf"), tl.float32)
    # Weights are added up lane by lane and across lanes at the end: that spares two barriers a tile.
    b_l = tl.zeros([GP, TOKENS], tl.float32)
    b_o = tl.zeros([GP, DP], tl.float32)
    for tile in tl.range(first, last, num_stages=STAGES):
        m_n = tile * TOKENS + o_t < seen
        p_n = _tokens_at(array, blocks, table, tile * TOKENS, seen, s_n, s_t, FIND, PAGE, BLOCK, TOKENS)
        m_nd = m_n[:, None] if D == DP else m_n[:, None] & m_d[None, :]
        b_k = tl.load(p_n[:, None] + o_d[None, :], mask=m_nd, other=0.0)  # [TOKENS, DP]
        b_v = tl.load(p_n[:, None] + s_kv + o_d[None, :], mask=m_nd, other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        b_s = tl.where(m_n[None, :], b_s, float("-inf"))
        new_top = tl.maximum(top, tl.max(b_s, 1))
        kept = tl.exp2(top - new_top)
        b_p = tl.exp2(b_s - new_top[:, None])
        b_l = b_l * kept[:, None] + b_p
        b_o = b_o * kept[:, None]
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)
        top = new_top
    total = tl.sum(b_l, 1)

    if SPLITS == 1:
        _write_out(out, b_o, total, o_g, o_d, m_gd, s_oh)
    else:
        i_part = i_pair * SPLITS + i_s
        tl.store(mixed + i_part * (G * D) + o_g[:, None] * D + o_d[None, :], b_o, mask=m_gd)
        tl.store(stats + i_part * (2 * G) + o_g, top, mask=o_g < G)
        tl.store(stats + i_part * (2 * G) + G + o_g, total, mask=o_g < G)
        if FUSED:
            # Every thread's stores come before the barrier, the barrier before one thread's release.
            tl.debug_barrier()
            before = tl.atomic_add(arrived + i_pair, 1, sem="acq_rel", scope="gpu")
            if before == SPLITS - 1:
                tl.store(arrived + i_pair, 0)  # for the next launch
                mixed += i_pair * SPLITS * (G * D)
                stats += i_pair * SPLITS * (2 * G)
                _join_group(mixed, stats, out, o_g, o_d, m_gd, s_oh, G, GP, D, DP, SPLITS)


@triton.jit
def _join_group(
    mixed, stats, out, o_g, o_d, m_gd, s_oh,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Add up the pieces of a whole group. They come from other multiprocessors, so the first-level cache is passed."""
    m_g = o_g < G
    top = tl.full([GP], float("-inf"), tl.float32)
    for i_s in tl.static_range(SPLITS):
        top = tl.maximum(top, tl.load(stats + i_s * (2 * G) + o_g, mask=m_g, other=0.0, cache_modifier=".cg"))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([GP], tl.float32)
    b_o = tl.zeros([GP, DP], tl.float32)
    for i_s in tl.static_range(SPLITS):
        own_top = tl.load(stats + i_s * (2 * G) + o_g, mask=m_g, other=0.0, cache_modifier=".cg")
        own = tl.load(stats + i_s * (2 * G) + G + o_g, mask=m_g, other=0.0, cache_modifier=".cg")
        p_gd = mixed + i_s * (G * D) + o_g[:, None] * D + o_d[None, :]
        share = tl.exp2(own_top - top)
        total += share * own
        b_o += share[:, None] * tl.load(p_gd, mask=m_gd, other=0.0, cache_modifier=".cg")
    _write_out(out, b_o, total, o_g, o_d, m_gd, s_oh)


@triton.jit
def _join_kernel(
    mixed, stats, out, s_ob, s_oh,
    HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    SPLITS: tl.constexpr, SP: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    i_q = tl.program_id(0).to(tl.int64)  # row * Hq + query head
    i_pair, i_g = i_q // G, i_q % G
    i_b, i_h = i_pair // HEADS, i_pair % HEADS
    mixed += i_pair * SPLITS * (G * D) + i_g * D
    stats += i_pair * SPLITS * (2 * G) + i_g
    o_d, o_a = tl.arange(0, DP), tl.arange(0, SP)
    top = tl.max(tl.load(stats + o_a * (2 * G), mask=o_a < SPLITS, other=float("-inf")), 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = 0.0
    b_o = tl.zeros([DP], tl.float32)
    for i_s in tl.static_range(0, SPLITS, STEP):
        o_s = i_s + tl.arange(0, STEP)
        m_s = o_s < SPLITS
        share = tl.exp2(tl.load(stats + o_s * (2 * G), mask=m_s, other=float("-inf")) - top)  # [STEP]
        own = tl.load(stats + o_s * (2 * G) + G, mask=m_s, other=0.0)
        m_sd = m_s[:, None] & (o_d < D)[None, :]
        parts = tl.load(mixed + o_s[:, None] * (G * D) + o_d[None, :], mask=m_sd, other=0.0)  # [STEP, DP]
        total += tl.sum(share * own, 0)
        b_o += tl.sum(share[:, None] * parts, 0)
    b_o = b_o / tl.where(total > 0, total, 1.0)
    tl.store(out + i_b * s_ob + (i_h * G + i_g) * s_oh + o_d, b_o.to(out.dtype.element_ty), mask=o_d < D)


@attrs.frozen(kw_only=True, eq=False)
class AttendScratch:
    """Partial results of attention, for every layer of one stream in turn.

    mixed    float32 [parts * G * D], weighted values of each piece
    stats    float32 [parts * 2 * G], its largest logit (base 2) and the sum of its weights
    arrived  int32 [places * Hk], pieces finished; 0 between launches
    """

    mixed: torch.Tensor
    stats: torch.Tensor
    arrived: torch.Tensor
    sms: int
    tuning: Tuning


def attend_scratch(
    *, places: int, q_heads: int, kv_heads: int, head_dim: int, blocks: int, block: int, dtype: torch.dtype,
    device: torch.device, tuning: Tuning | None = None,
) -> AttendScratch:  # fmt: skip
    """Memory for `attend_*` over up to `places` rows and lists of up to `blocks` blocks. The only allocation."""
    tuning, sms = tuning or Tuning(), sm_count(device)
    tiles = -(-blocks * block // tile_tokens(padded(head_dim, 16), dtype.itemsize))
    group, pairs = q_heads // kv_heads, places * kv_heads
    parts = most_parts(pairs, tiles, sms) if tuning.splits is None else pairs * tuning.splits
    return AttendScratch(
        mixed=torch.empty(parts * group * head_dim, dtype=torch.float32, device=device),
        stats=torch.empty(parts * 2 * group, dtype=torch.float32, device=device),
        arrived=torch.zeros(places * kv_heads, dtype=torch.int32, device=device),
        sms=sms, tuning=tuning,
    )  # fmt: skip


def attend_slots(
    q: torch.Tensor, slots_array: torch.Tensor, physical: torch.Tensor, counts: torch.Tensor,
    position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch,
) -> None:  # fmt: skip
    """Attention of each row's token over the blocks in its slots.

    q            [B, Hq, D]; head h belongs to KV head h // G
    slots_array  [n, 2, block, D], K then V, dtype of q; what lies beyond the visible tokens may be anything
    physical     int32 [B, Hk, W], index into slots_array of each selected block, in the order of the selection
    counts       int32 [B, Hk], blocks selected. The last is the row's current one and shows position % block + 1
                 tokens, all others are full
    position     int32 [B]; -1: no row here, its output is 0
    out          [B, Hq, D], written; scale 1 / sqrt(D), accumulated in float32
    scratch      of `attend_scratch`; launches that share it must be on one stream
    Strides are free but for the last axis, which is contiguous. No host synchronisation, no allocation.
    Raises ConfigError on shapes, dtypes or devices that do not fit.
    """
    require_shape(physical, "physical", B=q.shape[0], Hk=None, W=None)
    _launch(q, slots_array, physical, counts, None, position, spec, out, scratch, blocks=physical.shape[2], page=1)


def attend_pages(
    q: torch.Tensor, paged: Paged, choice: Choice, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor,
    scratch: AttendScratch,
) -> None:  # fmt: skip
    """The same over logical blocks of a resident layer, found through its page table. See `attend_slots`.

    A block selected must have its page.
    """
    require_shape(choice.blocks, "choice.blocks", B=q.shape[0], Hk=None, W=None)
    _launch(
        q, paged.array, choice.blocks, choice.counts, paged.table, position, spec, out, scratch,
        blocks=choice.blocks.shape[2], page=paged.page_blocks,
    )  # fmt: skip


def attend_all(
    q: torch.Tensor, paged: Paged, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch
) -> None:
    """The same over every block of a row, up to its current one. See `attend_slots`."""
    _launch(
        q, paged.array, None, None, paged.table, position, spec, out, scratch,
        blocks=paged.table.shape[2] * paged.page_blocks, page=paged.page_blocks,
    )  # fmt: skip


def _splits(pairs: int, tiles: int, sms: int, tuning: Tuning) -> int:
    if tuning.splits is None:
        return split_count(pairs, tiles, sms)
    return max(1, min(tuning.splits, tiles, MOST_SPLITS))


def _launch(
    q: torch.Tensor, array: torch.Tensor, blocks_list: torch.Tensor | None, counts: torch.Tensor | None,
    table: torch.Tensor | None, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor, scratch: AttendScratch,
    *, blocks: int, page: int,
) -> None:  # fmt: skip
    heads = _check(q, array, blocks_list, counts, table, position, spec, out)
    batch, q_heads, width = q.shape
    if batch == 0:
        return
    pairs, group, wide = batch * heads, q_heads // heads, padded(width, 16)
    tokens, tuning = tile_tokens(wide, q.element_size()), scratch.tuning
    splits = _splits(pairs, -(-blocks * spec.block // tokens), scratch.sms, tuning)
    parts = pairs * splits * group
    if splits > 1 and (
        parts * 2 > scratch.stats.numel() or parts * width > scratch.mixed.numel() or pairs > scratch.arrived.numel()
    ):
        raise ConfigError(
            f"scratch was made for less than {batch} rows of {blocks} blocks ({pairs} x {splits} pieces): "
            "pass the most places and blocks to attend_scratch"
        )
    find = _ALL if blocks_list is None else _SLOTS if table is None else _PAGES
    # A tile waits for its block's id, that of a paged layer for its page too: each is a step of the pipeline.
    stages = 1 + tuning.depth * (3 if table is not None and blocks_list is not None else 2)
    fused = 1 < splits <= tuning.fused_up_to
    ids, by_row, rooms = (t if t is not None else position for t in (blocks_list, counts, table))
    _attend_kernel[(pairs, splits)](
        q, array, ids, by_row, rooms, position, out, scratch.mixed, scratch.stats, scratch.arrived,
        width**-0.5 * 1.4426950408889634,  # weights are powers of two
        q.stride(0), q.stride(1), *array.stride()[:3], *_two(blocks_list), *_two(counts), *_two(table),
        out.stride(0), out.stride(1),
        HEADS=heads, G=group, GP=padded(group, 16), D=width, DP=wide, BLOCK=spec.block, PAGE=page, TOKENS=tokens,
        SPLITS=splits, FUSED=fused, FIND=find, PRECISION="ieee", STAGES=stages,
        num_warps=max(tuning.warps, padded(group, 16) // 16),
    )  # fmt: skip
    if splits > 1 and not fused:
        _join_kernel[(batch * q_heads,)](
            scratch.mixed, scratch.stats, out, out.stride(0), out.stride(1),
            HEADS=heads, G=group, D=width, DP=wide, SPLITS=splits, SP=padded(splits), STEP=min(32, padded(splits)),
            num_warps=4,
        )  # fmt: skip


def _two(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Strides of a table's rows and heads."""
    return (0, 0) if tensor is None else (tensor.stride(0), tensor.stride(1))


def _check(
    q: torch.Tensor, array: torch.Tensor, blocks_list: torch.Tensor | None, counts: torch.Tensor | None,
    table: torch.Tensor | None, position: torch.Tensor, spec: BlockSpec, out: torch.Tensor,
) -> int:  # fmt: skip
    """KV heads; raises ConfigError on what would make the kernel read elsewhere than it should."""
    require_device(q=q, array=array, blocks=blocks_list, counts=counts, table=table, position=position, out=out)
    batch, q_heads, width = q.shape
    lists = blocks_list if blocks_list is not None else table
    assert lists is not None
    heads = lists.shape[1]
    if heads < 1 or q_heads % heads:
        raise ConfigError(f"q has {q_heads} heads, not a multiple of the {heads} KV heads")
    require_shape(array, "array", n=None, KV=2, block=spec.block, D=width)
    require_shape(out, "out", B=batch, Hq=q_heads, D=width)
    require_shape(position, "position", B=batch)
    if counts is not None:
        require_shape(counts, "counts", B=batch, Hk=heads)
    if table is not None:
        require_shape(table, "table", B=batch, Hk=heads, P=None)
    if not q.dtype == array.dtype == out.dtype or q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ConfigError(f"q ({q.dtype}), array ({array.dtype}) and out ({out.dtype}) must be of one float dtype")
    for name, tensor in {"blocks": blocks_list, "counts": counts, "table": table, "position": position}.items():
        if tensor is not None and tensor.dtype != torch.int32:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; want int32")
    for name, tensor in {"q": q, "array": array, "out": out, "blocks": blocks_list, "table": table}.items():
        if tensor is not None and tensor.stride(-1) != 1:
            raise ConfigError(f"the last axis of {name} must be contiguous")
    return heads
