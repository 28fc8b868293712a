"""Blocks up the link by a kernel that reads pinned host memory in place: the engine `uva`.

Bandwidth is bytes in flight over the link's round trip, and what a copy costs the kernels beside it is how many
multiprocessors it takes. So few thread blocks keep many bytes in flight each, in registers: two of 128 KiB fill
a PCIe 5 x16 link on an H200. The list, its length and the destinations are read on the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.gather.runs import check_ctas, cut_runs
from sparda_core.kernels.quantise.gpu import from_e4m3, has_e4m3, require_host


@triton.jit
def copy_runs(
    source, target, source_ids, target_ids, blocks, s_source, s_target,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER_BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program's share of a list of `blocks` blocks."""
    runs = blocks * PER_BLOCK
    o_r, o_w = tl.arange(0, ROWS), tl.arange(0, RUN)
    for first in range(tl.program_id(0) * ROWS, runs, tl.num_programs(0) * ROWS):
        i_r = first + o_r  # runs of the list
        m_r = i_r < runs
        i_m, o_run = i_r // PER_BLOCK, i_r % PER_BLOCK * RUN
        m_rw = m_r[:, None]
        if WORDS % RUN != 0:
            m_rw = m_rw & (o_run[:, None] + o_w[None, :] < WORDS)
        i_s = tl.load(source_ids + i_m, mask=m_r, other=0).to(tl.int64)
        b_rw = tl.load((source + i_s * s_source + o_run)[:, None] + o_w[None, :], mask=m_rw)  # [ROWS, RUN]
        i_t = tl.load(target_ids + i_m, mask=m_r, other=0).to(tl.int64)
        tl.store((target + i_t * s_target + o_run)[:, None] + o_w[None, :], b_rw, mask=m_rw)


@triton.jit
def widen_runs(
    source, target, scales, source_ids, target_ids, blocks, s_source, s_target,
    HALF: tl.constexpr, RUN: tl.constexpr, PER_HALF: tl.constexpr, ROWS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The same for float8 (e4m3) blocks, widened on the way: runs of K and of V side by side, a scale for each."""
    runs = blocks * PER_HALF
    o_r, o_kv = tl.arange(0, ROWS), tl.arange(0, 2)
    # A thread loads as many codes at a time as the values it stores at a time: nothing changes hands in between.
    o_w = tl.max_contiguous(tl.arange(0, RUN), 128 // target.dtype.element_ty.primitive_bitwidth)
    o_vw = (o_kv * HALF)[None, :, None] + o_w[None, None, :]
    for first in range(tl.program_id(0) * ROWS, runs, tl.num_programs(0) * ROWS):
        i_r = first + o_r
        m_r = i_r < runs
        i_m, o_run = i_r // PER_HALF, i_r % PER_HALF * RUN
        m_rvw = m_r[:, None, None]
        if HALF % RUN != 0:
            m_rvw = m_rvw & (o_run[:, None, None] + o_w[None, None, :] < HALF)
        i_s = tl.load(source_ids + i_m, mask=m_r, other=0).to(tl.int64)
        b_rvw = tl.load((source + i_s * s_source + o_run)[:, None, None] + o_vw, mask=m_rvw)  # [ROWS, 2, RUN]
        scale = tl.load(scales + i_s[:, None] * 2 + o_kv[None, :], mask=m_r[:, None], other=0.0)
        i_t = tl.load(target_ids + i_m, mask=m_r, other=0).to(tl.int64)
        wide = from_e4m3(b_rvw, NATIVE) * scale[:, :, None]
        p_rvw = (target + i_t * s_target + o_run)[:, None, None] + o_vw
        tl.store(p_rvw, wide.to(target.dtype.element_ty), mask=m_rvw)


@triton.jit
def _gather_kernel(
    source, target, source_ids, target_ids, count, most, s_source, s_target,
    WORDS: tl.constexpr, RUN: tl.constexpr, PER_BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    blocks = tl.minimum(tl.load(count), most)
    copy_runs(source, target, source_ids, target_ids, blocks, s_source, s_target, WORDS, RUN, PER_BLOCK, ROWS)


@triton.jit
def _widen_kernel(
    source, target, scales, source_ids, target_ids, count, most, s_source, s_target,
    HALF: tl.constexpr, RUN: tl.constexpr, PER_HALF: tl.constexpr, ROWS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    blocks = tl.minimum(tl.load(count), most)
    widen_runs(
        source, target, scales, source_ids, target_ids, blocks, s_source, s_target, HALF, RUN, PER_HALF, ROWS, NATIVE
    )


def gather_blocks(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    count: torch.Tensor, *, ctas: int = 2, in_flight_bytes: int = 128 * 2**10, scales: torch.Tensor | None = None,
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
    Nothing is read by the host. Raises ConfigError on shapes, dtypes, devices, blocks that are no multiple of 16
    bytes or not contiguous, and knobs out of range.
    """
    device = require_device(
        target=target, source_ids=source_ids, target_ids=target_ids, count=count, scales=scales
    )
    check_copy(source, target, source_ids, target_ids, count, scales)
    require_host(source, "source", device)
    check_ctas(ctas)
    most = source_ids.shape[0]
    lists = (source_ids, target_ids, count, most)
    if scales is not None:
        options = widen_options(source, in_flight_bytes, device)
        _widen_kernel[(ctas,)](source, target, scales, *lists, source.stride(0), target.stride(0), **options)
        return
    options, words = copy_options(source, in_flight_bytes), block_words(source)
    target = block_words(target)
    _gather_kernel[(ctas,)](words, target, *lists, words.stride(0), target.stride(0), **options)


def copy_options(source: torch.Tensor, in_flight_bytes: int) -> dict[str, int]:
    """Constants and warps of `copy_runs` for blocks like those of `source`."""
    runs = cut_runs(2 * source.shape[2] * source.shape[3] * source.element_size(), in_flight_bytes)
    return {
        "WORDS": runs.words, "RUN": runs.run, "PER_BLOCK": runs.per_block, "ROWS": runs.rows, "num_warps": runs.warps
    }  # fmt: skip


def widen_options(source: torch.Tensor, in_flight_bytes: int, device: torch.device) -> dict[str, int]:
    """Constants and warps of `widen_runs` for codes like those of `source`."""
    runs = cut_runs(2 * source.shape[2] * source.shape[3], in_flight_bytes, halves=2)
    return {
        "HALF": runs.words * 4, "RUN": runs.run * 4, "PER_HALF": runs.per_block, "ROWS": runs.rows,
        "NATIVE": has_e4m3(device), "num_warps": runs.warps,
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
