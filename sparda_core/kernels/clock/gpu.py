"""The device's clock and the number of an SM, read by kernels: on an H200 the clock counts nanoseconds, in steps of 32.

By the interpreter both are the number that they are asked with.
"""

# Triton kernels take no annotations, and are told where everything lies.

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.device import INTERPRETED


@triton.jit
def clock_ns(x, INTERPRETED: tl.constexpr):
    """Nanoseconds of the device's clock; by the interpreter, x."""
    if INTERPRETED:
        now = x.to(tl.int64)
    else:
        now = tl.inline_asm_elementwise(
            "{ .reg .u32 u; mov.u32 u, $1; mov.u64 $0, %globaltimer; }", "=l,r", [x], dtype=tl.int64, is_pure=False,
            pack=1,
        )  # fmt: skip
    return now


@triton.jit
def sm_number(x, INTERPRETED: tl.constexpr):
    """The number of this SM; by the interpreter, x."""
    if INTERPRETED:
        number = x
    else:
        number = tl.inline_asm_elementwise(
            "{ .reg .u32 u; mov.u32 u, $1; mov.u32 $0, %smid; }", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1
        )
    return number


@triton.jit
def _mark_kernel(out, INTERPRETED: tl.constexpr):
    tl.store(out, clock_ns(tl.program_id(0), INTERPRETED))


def mark(out: torch.Tensor) -> None:
    """Write the device's clock into int64 [1], by a kernel of one warp. Raises ConfigError for another tensor."""
    if out.shape != (1,) or out.dtype != torch.int64:
        raise ConfigError(f"out has shape {tuple(out.shape)} and dtype {out.dtype}; must be int64 [1]")
    _mark_kernel[(1,)](out, INTERPRETED=INTERPRETED, num_warps=1)
