"""RMSNorm on a GPU: one program a row, which it keeps in registers between its two passes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.strides import require_contiguous_rows


@triton.jit
def _norm_kernel(x, s_x, weight, out, s_out, eps, N: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    within = d < N
    kind = out.dtype.element_ty
    scale = tl.load(weight + d, mask=within, other=0.0).to(tl.float32)
    wait_for_kernel_ahead(EARLY)
    wide = tl.load(x + row * s_x + d, mask=within, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / N + eps)
    tl.store(out + row * s_out + d, (normed.to(kind).to(tl.float32) * scale).to(kind), mask=within)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, eps: float, early: int = AT_END) -> None:
    """See `norm.reference.rms_norm`: x [B, hidden], weight [hidden], out [B, hidden] of x's dtype. One launch.

    early  see `kernels.early`
    """
    require_shape(weight, "weight", hidden=x.shape[-1])
    require_shape(out, "out", B=x.shape[0], hidden=x.shape[-1])
    require_device(x=x, weight=weight, out=out)
    require_contiguous_rows(x=x, weight=weight, out=out)
    width = padded(x.shape[1], 32)
    _norm_kernel[grid(x.shape[0])](
        x, x.stride(0), weight, out, out.stride(0), eps, N=x.shape[1], WIDTH=width,
        num_warps=warps(width), **launch_early(early),
    )  # fmt: skip


def grid(batch: int) -> tuple[int]:
    """Programs of one launch."""
    return (batch,)


def warps(width: int) -> int:
    """Enough for one 16-byte load of two-byte values a thread, at most 16."""
    return max(1, min(16, width // 256))
