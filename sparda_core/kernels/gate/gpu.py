"""The gate of a gated feed-forward on a GPU: many programs a row, so that one row keeps several SMs busy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.gate.work import TILE
from sparda_core.kernels.strides import require_contiguous_rows

#: A thread loads 16 bytes of gate and 16 of up in two-byte dtypes.
_WARPS = TILE // 256


@triton.jit
def _gate_kernel(gate_up, s_in, out, s_out, N: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * TILE + tl.arange(0, TILE)
    within = d < N
    kind = out.dtype.element_ty
    wait_for_kernel_ahead(EARLY)
    gate = tl.load(gate_up + row * s_in + d, mask=within, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * s_in + N + d, mask=within, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # never overflows
    opened = (gate * tl.where(gate >= 0, 1.0, small) / (1.0 + small)).to(kind).to(tl.float32)
    tl.store(out + row * s_out + d, (opened * up).to(kind), mask=within)


def silu_gate(gate_up: torch.Tensor, out: torch.Tensor, *, early: int = AT_END) -> None:
    """See `gate.reference.silu_gate`: gate_up [B, 2 * ffn], out [B, ffn] of its dtype. One launch.

    early  see `kernels.early`
    """
    batch, ffn = out.shape
    require_shape(gate_up, "gate_up", B=batch, N=2 * ffn)
    require_device(gate_up=gate_up, out=out)
    require_contiguous_rows(gate_up=gate_up, out=out)
    _gate_kernel[grid(batch, ffn)](
        gate_up, gate_up.stride(0), out, out.stride(0), N=ffn, TILE=TILE, num_warps=_WARPS, **launch_early(early)
    )


def grid(batch: int, ffn: int) -> tuple[int, int]:
    """Programs of one launch."""
    return batch, -(-ffn // TILE)
