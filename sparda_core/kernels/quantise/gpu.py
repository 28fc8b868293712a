"""Float8 on a GPU: e4m3 codes of a block that a step has filled, written from its slot to pinned host memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec

_LEAST_SCALE = tl.constexpr(1.1754943508222875e-38)  # float32's smallest normal number
_TINY_NORMAL = tl.constexpr(0x3C800000)  # bits of 2**-6, e4m3's smallest normal number
_STEPS = tl.constexpr(0x46800000)  # bits of 2**14, a float32 whose neighbours lie 2**-9 apart: e4m3's smallest step


def has_e4m3(device: torch.device) -> bool:
    """Whether a device converts e4m3 by itself (from Ada on); others do it in integers, with the same result."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


@triton.jit
def to_e4m3(x, NATIVE: tl.constexpr):
    """float32 -> uint8 code: nearest, ties to even, +-448 beyond; NaN is 0x7F."""
    if NATIVE:
        code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        return tl.where(x == x, code, 0x7F).to(tl.uint8)
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    rounded = size + 0x7FFFF + ((size >> 20) & 1)
    normal = (rounded >> 20) - (120 << 3)  # 3 bits of mantissa; the exponent's bias goes from 127 to 7
    steps = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - _STEPS
    code = tl.minimum(tl.where(size < _TINY_NORMAL, steps, normal), 0x7E)
    code = code | ((bits >> 24) & 0x80)
    return tl.where(size > 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def from_e4m3(code, NATIVE: tl.constexpr):
    """uint8 code -> float32, exactly."""
    if NATIVE:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    bits = code.to(tl.int32)
    size = bits & 0x7F
    # Read as a float32 the code is too small by 2**120, subnormal ones too.
    x = (size << 20).to(tl.float32, bitcast=True) * 1329227995784915872903807060280344576.0
    x = tl.where(size == 0x7F, float("nan"), x)
    return tl.where(bits >= 0x80, -x, x)


@triton.jit
def _quantise_kernel(
    array, tail, position, host, table, scales, s_n, s_kv, s_t, s_hn, s_hkv, s_ht, s_lb, s_lh, s_tb, s_th,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, BP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PAGE: tl.constexpr, NATIVE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_pair, i_kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i_b, i_h = i_pair // HEADS, i_pair % HEADS
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    if (at >= 0) & (at % BLOCK == BLOCK - 1):
        i_n = tl.load(tail + i_b * s_lb + i_h * s_lh).to(tl.int64)
        i_block = at // BLOCK
        i_p = tl.load(table + i_b * s_tb + i_h * s_th + i_block // PAGE).to(tl.int64)
        i_host = i_p * PAGE + i_block % PAGE
        o_t, o_d = tl.arange(0, BP), tl.arange(0, DP)
        m_td = (o_t < BLOCK)[:, None] & (o_d < D)[None, :]
        p_td = array + i_n * s_n + i_kv * s_kv + o_t[:, None] * s_t + o_d[None, :]
        x = tl.load(p_td, mask=m_td, other=0.0).to(tl.float32)
        size = tl.abs(x)
        finite = tl.where(size < float("inf"), size, 0.0)
        largest = tl.max(tl.max(finite, 1), 0)
        scale = tl.where(largest > 0, tl.maximum(tl.math.div_rn(largest, 448.0), _LEAST_SCALE), 1.0)
        code = to_e4m3(tl.math.div_rn(x, tl.broadcast_to(scale, [BP, DP])), NATIVE)
        p_td = host + i_host * s_hn + i_kv * s_hkv + o_t[:, None] * s_ht + o_d[None, :]
        tl.store(p_td, code, mask=m_td)
        tl.store(scales + i_host * 2 + i_kv, scale)


def quantise_closed(
    array: torch.Tensor, tail: torch.Tensor, position: torch.Tensor, host: Paged, spec: BlockSpec, *,
    early: int = AT_END,
) -> None:  # fmt: skip
    """Blocks that this step's token has filled go to the host copy, in float8, from the slots they lie in.

    array     [n, 2, block, D], slots; the token's K and V are there already
    tail      int32 [B, Hk], index into array of each row's current block
    position  int32 [B]; a row whose token is not the last of its block writes nothing, nor does a place of -1
    host      codes of e4m3 as uint8 in pinned memory, and float32 scales [n, 2] on the device: both are written
    early     see `kernels.early`; position must not be the previous kernel's doing
    Scales and codes are those of `quantise.reference.quantise_blocks`, bit for bit. Until a block is full, its slot is
    the only place that has it. Raises ConfigError on shapes, dtypes or devices that do not fit.
    """
    batch, heads = tail.shape
    device = require_device(array=array, tail=tail, position=position, table=host.table, scales=host.scales)
    require_shape(array, "array", n=None, KV=2, block=spec.block, D=None)
    require_shape(host.array, "host.array", n=None, KV=2, block=spec.block, D=array.shape[3])
    require_shape(host.table, "host.table", B=batch, Hk=heads, P=None)
    require_shape(position, "position", B=batch)
    if host.scales is None or host.array.dtype != torch.uint8:
        raise ConfigError(f"the host copy ({host.array.dtype}) must hold uint8 codes and have scales")
    require_shape(host.scales, "host.scales", n=host.array.shape[0], KV=2)
    if not host.scales.is_contiguous() or host.scales.dtype != torch.float32:
        raise ConfigError(f"scales ({host.scales.dtype}) must be float32 and contiguous")
    require_host(host.array, "host.array", device)
    if batch == 0:
        return
    width, wide, tall = array.shape[3], padded(array.shape[3]), padded(spec.block)
    _quantise_kernel[(batch * heads, 2)](
        array, tail, position, host.array, host.table, host.scales,
        *array.stride()[:3], *host.array.stride()[:3], tail.stride(0), tail.stride(1), *host.table.stride()[:2],
        HEADS=heads, BLOCK=spec.block, BP=tall, D=width, DP=wide, PAGE=host.page_blocks, NATIVE=has_e4m3(device),
        num_warps=max(4, min(16, tall * wide // 2048)), **launch_early(early),
    )  # fmt: skip


def require_host(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """Raise ConfigError unless a kernel on `device` can reach this memory: pinned, or the device's own."""
    if device.type == "cuda" and not tensor.is_cuda and not tensor.is_pinned():
        raise ConfigError(f"{name} lies in pageable host memory, which kernels cannot reach: pin it")
