"""RMSNorm of query and key heads on a GPU, in place between a layer's product and its rotation (Qwen3)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.norm.work import HEADS
from sparda_core.kernels.strides import require_contiguous_rows

_WARPS = 2


@triton.jit
def _norm_heads_kernel(
    proj, s_proj, weight, eps,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    within = (h < H) & (d < D)
    kind = proj.dtype.element_ty
    scale = tl.load(weight + h * D + d, mask=within, other=0.0).to(tl.float32)
    wait_for_kernel_ahead(EARLY)
    at = proj + row * s_proj + h * D + d
    wide = tl.load(at, mask=within, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, axis=1) / D + eps)[:, None]
    tl.store(at, (normed.to(kind).to(tl.float32) * scale).to(kind), mask=within)


def norm_heads(proj: torch.Tensor, weight: torch.Tensor, *, eps: float, early: int = AT_END) -> None:
    """See `norm.reference.norm_heads`: the first H heads of proj [B, F], in place; weight [H, D]. One launch.

    early   see `kernels.early`
    raises  ConfigError where F is less than H * D, or a row or the weight is not contiguous
    """
    batch, (heads, size) = proj.shape[0], weight.shape
    require_shape(proj, "proj", B=batch, F=None)
    if proj.shape[1] < heads * size:
        raise ConfigError(f"proj has {proj.shape[1]} values a row; must have at least {heads} heads of {size}")
    if not weight.is_contiguous():
        raise ConfigError("weight must be contiguous: a head's is found by its number alone")
    require_device(proj=proj, weight=weight)
    require_contiguous_rows(proj=proj)
    _norm_heads_kernel[heads_grid(batch, heads)](
        proj, proj.stride(0), weight, eps, H=heads, D=size, WIDTH=padded(size), HEADS=HEADS, num_warps=_WARPS,
        **launch_early(early),
    )  # fmt: skip


def heads_grid(batch: int, heads: int) -> tuple[int, int]:
    """Programs of one launch."""
    return batch, -(-heads // HEADS)
