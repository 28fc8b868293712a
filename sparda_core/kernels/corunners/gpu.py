"""What kernels are run beside, besides copies over the link: one that only holds SMs, one that only uses memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError

#: A thread block that holds a whole SM: 1024 threads, whose registers it fills as the copy kernel's do.
WARPS = 32
_WIDE, _NARROW = 32 * 1024, 16 * 1024
#: Words that a thread block of the memory copy moves in one turn: 64 bytes a thread on their way.
_TURN = 16 * 1024


@triton.jit
def _spin_kernel(out, turns, WIDE: tl.constexpr, NARROW: tl.constexpr):
    # 48 live values a thread and a chain of dependent steps: registers are held, no memory is used, little power.
    first = tl.program_id(0)
    a = (tl.arange(0, WIDE) + first).to(tl.float32)
    b = (tl.arange(0, NARROW) + first).to(tl.float32)
    for _ in range(turns):
        a = a * 0.5 + 1.0
        b = b * 0.5 + 1.0
    tl.store(out + first, tl.sum(a, axis=0) + tl.sum(b, axis=0))


@triton.jit
def _copy_kernel(source, target, words, TURN: tl.constexpr):
    step = tl.num_programs(0).to(tl.int64) * TURN
    at = tl.program_id(0).to(tl.int64) * TURN
    for base in range(at, words, step):
        w = base + tl.arange(0, TURN)
        tl.store(target + w, tl.load(source + w, mask=w < words, other=0), mask=w < words)


def spin(out: torch.Tensor, ctas: int, turns: int) -> None:
    """Hold `ctas` whole SMs for a time that grows with `turns`; out float32 [ctas or more] keeps what came of it."""
    _check(ctas, turns=turns)
    _spin_kernel[(ctas,)](out, turns, WIDE=_WIDE, NARROW=_NARROW, num_warps=WARPS)


def copy_memory(source: torch.Tensor, target: torch.Tensor, ctas: int) -> None:
    """Copy int32 [n] within device memory by `ctas` thread blocks, each on an SM of its own."""
    _check(ctas, words=source.numel())
    if source.shape != target.shape or source.dtype != torch.int32 or target.dtype != torch.int32:
        raise ConfigError(f"source ({source.dtype}) and target ({target.dtype}) must be int32 of one shape")
    _copy_kernel[(ctas,)](source, target, source.numel(), TURN=_TURN, num_warps=WARPS)


def _check(ctas: int, **counts: int) -> None:
    for name, value in {"ctas": ctas, **counts}.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be >= 1")
