"""The Triton kernels of decode attention: a piece of a list, and adding pieces up. `gpu.py` launches them.

A program takes one (row, KV head) and one piece of its list of blocks; the query heads of the group share
every tile it reads. Products are in the dtype of the inputs (float32 exactly), sums and partial results in
float32. Either the last program of a (row, head) to finish adds the pieces up, or a second launch does.
"""

from __future__ import annotations

import triton
import triton.language as tl

# How the w-th block of a list is found: it is named by its place, by its logical id, or it is the w-th of the row.
SLOTS, PAGES, ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _block_at(blocks, table, w, FIND: tl.constexpr, PAGE: tl.constexpr):
    """Index into the array of the w-th listed block, 64 bits; `blocks` and `table` begin at one (row, head)."""
    if FIND == SLOTS:
        return tl.load(blocks + w).to(tl.int64)
    i_n = w
    if FIND == PAGES:
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
def _biased(
    b_s, m_n, bias, logical, first, seen,
    FIND: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Logits [GP, TOKENS], powers of two, and their tokens' biases, if any; `bias` begins at one (row, head)."""
    if BIAS:
        p_n = _bias_at(bias, logical, first, seen, FIND, BLOCK, TOKENS)
        b_s += tl.load(p_n, mask=m_n, other=0.0)[None, :] * 1.4426950408889634
    return b_s


@triton.jit
def _bias_at(
    bias, logical, first, seen, FIND: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr
):  # fmt: skip
    """Where the biases of TOKENS tokens of a list lie, from its `first` on: by logical token, whatever the blocks."""
    o_t = tl.arange(0, TOKENS)
    if FIND == ALL:
        return bias + first + o_t
    if BLOCK % TOKENS == 0:
        return bias + tl.load(logical + first // BLOCK).to(tl.int64) * BLOCK + first % BLOCK + o_t
    i_n = tl.load(logical + tl.minimum(first + o_t, seen - 1) // BLOCK)
    return bias + i_n.to(tl.int64) * BLOCK + (first + o_t) % BLOCK


@triton.jit
def _tokens_seen(at, listed, FIND: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens of the list of a row at position `at`; none where nobody is."""
    if FIND == ALL:
        return at + 1
    blocks = tl.load(listed)
    return tl.where((at >= 0) & (blocks > 0), (blocks - 1) * BLOCK + at % BLOCK + 1, 0)


@triton.jit
def _wait(EARLY: tl.constexpr, TELL: tl.constexpr):
    """Wait for the kernel ahead; let the sum take its places while the last pieces run (it waits for them)."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if TELL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _write_out(out, mixed, total, o_g, o_d, m_gd, s_h):
    """Mixed values over their weights; 0 where no token was seen."""
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + o_g[:, None] * s_h + o_d[None, :], mixed.to(out.dtype.element_ty), mask=m_gd)


@triton.jit
def _leave(mixed, stats, b_o, top, total, o_g, o_d, m_gd, G: tl.constexpr, D: tl.constexpr):
    """A piece's result, for whoever adds up."""
    tl.store(mixed + o_g[:, None] * D + o_d[None, :], b_o, mask=m_gd)
    tl.store(stats + o_g, top, mask=o_g < G)
    tl.store(stats + G + o_g, total, mask=o_g < G)


# Few variants are compiled: a number of pieces is only known to the compiler where one program adds them up.
@triton.jit(do_not_specialize=["splits"])
def attend_kernel(
    q, array, blocks, counts, table, position, bias, logical, out, mixed, stats, arrived, splits, scale,
    s_qb, s_qh, s_n, s_kv, s_t, s_bb, s_bh, s_cb, s_ch, s_tb, s_th, s_ab, s_ah, s_lb, s_lh, s_ob, s_oh,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr, JOIN: tl.constexpr,
    FIND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, TELL: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """One piece of the list of one (row, head): all of it for JOIN 1; added up here for JOIN > 1, elsewhere for 0.

    With BIAS every token's logit gets its bias, float32, for the whole group.
    """
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

    at = tl.load(position + i_b)
    _wait(EARLY, TELL)
    seen = _tokens_seen(at, counts + i_b * s_cb + i_h * s_ch, FIND, BLOCK)
    tiles = tl.cdiv(seen, TOKENS)
    each = tl.cdiv(tiles, splits)
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
        b_s = _biased(
            tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale, m_n, bias + i_b * s_ab + i_h * s_ah,
            logical + i_b * s_lb + i_h * s_lh, tile * TOKENS, seen, FIND, BLOCK, TOKENS, BIAS,
        )  # fmt: skip
        b_s = tl.where(m_n[None, :], b_s, float("-inf"))
        new_top = tl.maximum(top, tl.max(b_s, 1))
        kept = tl.exp2(top - new_top)
        b_p = tl.exp2(b_s - new_top[:, None])
        b_l = b_l * kept[:, None] + b_p
        b_o = b_o * kept[:, None]
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)
        top = new_top
    total = tl.sum(b_l, 1)

    if JOIN == 1:
        _write_out(out, b_o, total, o_g, o_d, m_gd, s_oh)
    else:
        i_part = i_pair * splits + i_s
        _leave(mixed + i_part * (G * D), stats + i_part * (2 * G), b_o, top, total, o_g, o_d, m_gd, G, D)
        if JOIN > 1:
            # Every thread's stores come before the barrier, the barrier before one thread's release.
            tl.debug_barrier()
            before = tl.atomic_add(arrived + i_pair, 1, sem="acq_rel", scope="gpu")
            if before == JOIN - 1:
                tl.store(arrived + i_pair, 0)  # for the next launch
                mixed += i_pair * JOIN * (G * D)
                stats += i_pair * JOIN * (2 * G)
                _join_group(mixed, stats, out, o_g, o_d, m_gd, s_oh, G, GP, D, DP, JOIN)


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


@triton.jit(do_not_specialize=["splits"])
def join_kernel(
    mixed, stats, out, splits, s_ob, s_oh,
    HEADS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SP: tl.constexpr, DT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add up the pieces of DT values of one query head: all of them are loaded at once."""
    i_q = tl.program_id(0).to(tl.int64)  # row * Hq + query head
    i_pair, i_g = i_q // G, i_q % G
    i_b, i_h = i_pair // HEADS, i_pair % HEADS
    o_s, o_d = tl.arange(0, SP), tl.program_id(1) * DT + tl.arange(0, DT)
    m_s = o_s < splits
    stats += (i_pair * splits + o_s) * (2 * G) + i_g
    p_sd = mixed + (i_pair * splits + o_s)[:, None] * (G * D) + i_g * D + o_d[None, :]
    if EARLY:
        tl.extra.cuda.gdc_wait()
    tops = tl.load(stats, mask=m_s, other=float("-inf"))
    own = tl.load(stats + G, mask=m_s, other=0.0)
    parts = tl.load(p_sd, mask=m_s[:, None] & (o_d < D)[None, :], other=0.0)  # [SP, DT]
    top = tl.max(tops, 0)
    share = tl.exp2(tops - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(share * own, 0)
    b_o = tl.sum(share[:, None] * parts, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + i_b * s_ob + (i_h * G + i_g) * s_oh + o_d, b_o.to(out.dtype.element_ty), mask=o_d < D)
