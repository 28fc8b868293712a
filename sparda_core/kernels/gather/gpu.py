"""Blocks up the link by a kernel that reads pinned host memory in place: the engine `uva`.

Bandwidth is bytes in flight over the link's round trip, and what a copy costs the kernels beside it is how many
multiprocessors it takes. So few thread blocks keep many bytes in flight each, in registers: two of 128 KiB fill
a PCIe 5 x16 link on an H200. The list, its length and the destinations are read on the device.
"""

# A name that some parts lack is unknown to mypy, and a compile-time constant is not.
# mypy: disable-error-code="possibly-undefined"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import INTERPRETED, require_device
from sparda_core.kernels.gather.runs import FLOAT8_TUNING, CopyTuning, check_ctas, cut_runs
from sparda_core.kernels.quantise.gpu import from_e4m3, has_e4m3, require_host


@triton.jit
def _ids_of(source_ids, target_ids, i_r, runs, PER: tl.constexpr):
    """Source and target block of each run."""
    m_r, i_m = i_r < runs, i_r // PER
    return tl.load(source_ids + i_m, mask=m_r, other=0), tl.load(target_ids + i_m, mask=m_r, other=0)


@triton.jit
def _place(
    blocks, i_n, i_r, runs, s_n,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, HALVES: tl.constexpr, LANE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Where runs lie in their blocks, WIDE values for each word of a run, and which of them exist."""
    o_run = i_r % PER * (RUN * WIDE)
    # A thread loads as many codes at a time as the values it stores at a time: nothing changes hands in between.
    o_w = tl.max_contiguous(tl.arange(0, RUN * WIDE), LANE)
    o_vw = (tl.arange(0, HALVES) * (WORDS * WIDE))[None, :, None] + o_w[None, None, :]
    m_rvw = (i_r < runs)[:, None, None]
    if WORDS % RUN != 0:
        m_rvw = m_rvw & (o_run[:, None, None] + o_w[None, None, :] < WORDS * WIDE)
    return (blocks + i_n.to(tl.int64) * s_n + o_run)[:, None, None] + o_vw, m_rvw


@triton.jit
def _fetch(
    source, scales, i_s, i_r, runs, s_n,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, HALVES: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """Runs, and the scales of float8 ones: on their way until they are used."""
    p_rvw, m_rvw = _place(source, i_s, i_r, runs, s_n, WORDS, RUN, PER, HALVES, LANE, 1)
    scale = tl.full([1, HALVES], 1.0, tl.float32)
    if HALVES == 2:
        p_rv = scales + i_s.to(tl.int64)[:, None] * 2 + tl.arange(0, HALVES)[None, :]
        scale = tl.load(p_rv, mask=(i_r < runs)[:, None], other=0.0)
    return tl.load(p_rvw, mask=m_rvw), scale


@triton.jit
def _warm(
    source, i_s, i_r, runs, s_n,
    RUN: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, WARM: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Ask for a line of every WARM words of runs that come next: a thread a line, and nobody waits for it."""
    if WARM > 0:
        o_w = tl.arange(0, THREADS // ROWS) * WARM
        p_rw = (source + i_s.to(tl.int64) * s_n + i_r % PER * RUN)[:, None] + o_w[None, :]
        m_rw = ((i_r < runs)[:, None] & (o_w < RUN)[None, :]).to(tl.int32)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, $2; }", "=r,l,r",
            [p_rw.to(tl.int64), m_rw], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _codes_of(words):
    """The four float8 codes of each word, [..., 2, 2]."""
    even, odd = tl.join(words, words >> 16), tl.join(words >> 8, words >> 24)
    return tl.join(even, odd).to(tl.uint8)


@triton.jit
def _put(
    target, b_rvw, scale, i_t, i_r, runs, s_n,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, HALVES: tl.constexpr, LANE: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Runs to their blocks, float8 ones widened. A word holds four codes till then: bytes would take registers each."""
    if HALVES == 2:
        p_rvw, m_rvw = _place(target, i_t, i_r, runs, s_n, WORDS, RUN, PER, HALVES, LANE, 4)
        values = from_e4m3(tl.reshape(_codes_of(b_rvw), p_rvw.shape), NATIVE) * scale[:, :, None]
        tl.store(p_rvw, values.to(target.dtype.element_ty), mask=m_rvw)
    else:
        p_rvw, m_rvw = _place(target, i_t, i_r, runs, s_n, WORDS, RUN, PER, HALVES, LANE, 1)
        tl.store(p_rvw, b_rvw, mask=m_rvw)


@triton.jit
def copy_list(
    source, target, scales, source_ids, target_ids, blocks, s_source, s_target,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    HALVES: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr, NATIVE: tl.constexpr, WARM: tl.constexpr = 0,
):  # fmt: skip
    """One program's share of a list of `blocks` blocks.

    1, 2 or 4 parts of ROWS runs: a part is stored and filled again while the loads of the others are under way.
    WARM > 0, in one part: a line of every WARM words of the next runs is asked for before the values of these arrive.
    """
    runs = blocks * PER
    step = tl.num_programs(0) * ROWS
    r_0 = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s_0, t_0 = _ids_of(source_ids, target_ids, r_0, runs, PER)
    if PARTS >= 2:
        s_1, t_1 = _ids_of(source_ids, target_ids, r_0 + step, runs, PER)
    if PARTS == 4:
        s_2, t_2 = _ids_of(source_ids, target_ids, r_0 + 2 * step, runs, PER)
        s_3, t_3 = _ids_of(source_ids, target_ids, r_0 + 3 * step, runs, PER)
    b_0, c_0 = _fetch(source, scales, s_0, r_0, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
    if PARTS >= 2:
        b_1, c_1 = _fetch(source, scales, s_1, r_0 + step, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
    if PARTS == 4:
        b_2, c_2 = _fetch(source, scales, s_2, r_0 + 2 * step, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
        b_3, c_3 = _fetch(source, scales, s_3, r_0 + 3 * step, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
    for _ in range(tl.program_id(0) * ROWS, runs, PARTS * step):
        n_0 = r_0 + PARTS * step
        # The ids of the next runs arrive while the values of these do.
        s_0, u_0 = _ids_of(source_ids, target_ids, n_0, runs, PER)
        if PARTS >= 2:
            s_1, u_1 = _ids_of(source_ids, target_ids, n_0 + step, runs, PER)
        if PARTS == 4:
            s_2, u_2 = _ids_of(source_ids, target_ids, n_0 + 2 * step, runs, PER)
            s_3, u_3 = _ids_of(source_ids, target_ids, n_0 + 3 * step, runs, PER)
        _warm(source, s_0, n_0, runs, s_source, RUN, PER, ROWS, WARM, 1024)
        _put(target, b_0, c_0, t_0, r_0, runs, s_target, WORDS, RUN, PER, HALVES, STORES, NATIVE)
        b_0, c_0 = _fetch(source, scales, s_0, n_0, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
        t_0 = u_0
        if PARTS >= 2:
            r_1, n_1 = r_0 + step, n_0 + step
            _put(target, b_1, c_1, t_1, r_1, runs, s_target, WORDS, RUN, PER, HALVES, STORES, NATIVE)
            b_1, c_1 = _fetch(source, scales, s_1, n_1, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
            t_1 = u_1
        if PARTS == 4:
            r_2, n_2, r_3, n_3 = r_0 + 2 * step, n_0 + 2 * step, r_0 + 3 * step, n_0 + 3 * step
            _put(target, b_2, c_2, t_2, r_2, runs, s_target, WORDS, RUN, PER, HALVES, STORES, NATIVE)
            b_2, c_2 = _fetch(source, scales, s_2, n_2, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
            _put(target, b_3, c_3, t_3, r_3, runs, s_target, WORDS, RUN, PER, HALVES, STORES, NATIVE)
            b_3, c_3 = _fetch(source, scales, s_3, n_3, runs, s_source, WORDS, RUN, PER, HALVES, LOADS)
            t_2, t_3 = u_2, u_3
        r_0 = n_0


@triton.jit
def gather_kernel(
    source, target, scales, source_ids, target_ids, count, most, s_source, s_target,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    HALVES: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr, NATIVE: tl.constexpr, WARM: tl.constexpr,
):  # fmt: skip
    """`copy_list` of the first `count` blocks, at most `most`; `gather_blocks` launches it."""
    blocks = tl.minimum(tl.load(count), most)
    copy_list(
        source, target, scales, source_ids, target_ids, blocks, s_source, s_target,
        WORDS, RUN, PER, ROWS, PARTS, HALVES, LOADS, STORES, NATIVE, WARM,
    )  # fmt: skip


def gather_blocks(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    count: torch.Tensor, *, ctas: int = 2, in_flight_bytes: int = 128 * 2**10, scales: torch.Tensor | None = None,
    tuning: CopyTuning | None = None,
) -> None:  # fmt: skip
    """Copy block source_ids[i] of `source` to block target_ids[i] of `target`, for i below count[0].

    source      [m, 2, block, D], pinned host memory or device memory
    target      [n, 2, block, D], on the device, same dtype; what no id names is left alone
    source_ids, target_ids  int32 [most]; no target twice. Ids from count[0] on are not looked at
    count       int32 [1]; a larger one than `most` is cut to it
    ctas        thread blocks. Two cost kernels beside them a few per cent, three or more a second wave
    in_flight_bytes  bytes that each keeps under way, a power of two from 1 to 128 KiB; decides its warps as well.
                The paper's setting is 16 (below batch 32, else 32) thread blocks of 16 KiB
    scales      float32 [m, 2] on the device, for a source of uint8 codes (e4m3): each value is multiplied by the
                scale of its block's K or V in float32 and rounded to target's dtype once. Codes are in flight
    tuning      changes nothing but the time; None: as measured
    Nothing is read by the host. Raises ConfigError on shapes, dtypes, devices, blocks that are no multiple of 16
    bytes or not contiguous, and knobs out of range.
    """
    device = require_device(
        target=target, source_ids=source_ids, target_ids=target_ids, count=count, scales=scales
    )
    check_copy(source, target, source_ids, target_ids, count, scales)
    require_host(source, "source", device)
    check_ctas(ctas)
    words, slots = block_words(source), target if scales is not None else block_words(target)
    gather_kernel[(ctas,)](
        words, slots, words if scales is None else scales, source_ids, target_ids, count, source_ids.shape[0],
        words.stride(0), slots.stride(0), WARM=0 if tuning is None or INTERPRETED else tuning.warm // 4,
        **copy_options(source, target, in_flight_bytes, tuning),
    )  # fmt: skip


def copy_options(
    source: torch.Tensor, target: torch.Tensor, in_flight_bytes: int, tuning: CopyTuning | None = None
) -> dict[str, int]:
    """Constants and warps of `copy_list`, from blocks of `source` to blocks like those of `target`; float8 is uint8."""
    values, float8 = 2 * source.shape[-2] * source.shape[-1], source.dtype != target.dtype
    if float8:
        runs = cut_runs(values, in_flight_bytes, halves=2, tuning=tuning or FLOAT8_TUNING)
        loads, stores = 4 // target.element_size(), 16 // target.element_size()
    else:
        runs = cut_runs(values * source.element_size(), in_flight_bytes, tuning=tuning)
        loads, stores = 4, 4
    return {
        "WORDS": runs.words, "RUN": runs.run, "PER": runs.per_block, "ROWS": runs.rows, "PARTS": runs.parts,
        "HALVES": 2 if float8 else 1, "LOADS": loads, "STORES": stores, "NATIVE": has_e4m3(target.device),
        "num_warps": runs.warps,
    }  # fmt: skip


def block_words(blocks: torch.Tensor) -> torch.Tensor:
    """The same memory as int32 [n, words]: a copy does not care what its bytes mean."""
    return blocks.flatten(1).view(torch.int32)


def check_copy(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    count: torch.Tensor, scales: torch.Tensor | None,
) -> None:  # fmt: skip
    """Raise ConfigError where the tensors of a copy do not fit each other."""
    require_shape(source, "source", m=None, KV=2, block=None, D=None)
    require_shape(target, "target", n=None, KV=2, block=source.shape[2], D=source.shape[3])
    require_shape(source_ids, "source_ids", most=None)
    require_shape(target_ids, "target_ids", most=source_ids.shape[0])
    require_shape(count, "count", one=1)
    for name, tensor in {"source_ids": source_ids, "target_ids": target_ids, "count": count}.items():
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise ConfigError(f"{name} ({tensor.dtype}) must be int32 and contiguous")
    inner = (source.shape[2] * source.shape[3], source.shape[3], 1)
    for name, tensor in {"source": source, "target": target}.items():
        if tensor.shape[0] > 0 and tensor.stride()[1:] != inner:
            raise ConfigError(f"{name} has strides {tensor.stride()}: a block must be one contiguous run")
        if tensor.stride(0) * tensor.element_size() % 16 or tensor.data_ptr() % 16:
            raise ConfigError(f"{name}: blocks must begin at multiples of 16 bytes, {tensor.stride(0)} values apart")
    if scales is None:
        if source.dtype != target.dtype:
            raise ConfigError(f"source ({source.dtype}) and target ({target.dtype}) must be of one dtype")
        return
    require_shape(scales, "scales", m=source.shape[0], KV=2)
    if source.dtype != torch.uint8 or scales.dtype != torch.float32 or not scales.is_contiguous():
        raise ConfigError(f"float8 wants uint8 codes ({source.dtype}) and contiguous float32 scales ({scales.dtype})")
    if target.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ConfigError(f"target has dtype {target.dtype}; float8 widens to bfloat16, float16 or float32")
