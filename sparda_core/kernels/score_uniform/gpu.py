"""Scores by a hash, on a GPU: chance, the same bits as on a CPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead

#: Blocks a program scores.
_TILE = 1024


def uniform_block_scores(
    position: torch.Tensor, state: int, block: int, out: torch.Tensor, *, early: int = AT_END
) -> None:
    """A number in [0, 1) for every block up to each row's current one, a function of (state, position, head, block).

    position  int32 [B]; -1: nothing is written for the place
    state     signed 64-bit: what seed and layer were hashed to
    block     tokens a block
    out       float32 [B, Hk, M], written up to each row's current block and no further
    early     see `kernels.early`; position must not be the previous kernel's doing
    One launch. Each part p is taken in by state = mix(state ^ p * step), `mix` and `step` those of SplitMix64.
    """
    require_shape(out, "out", B=position.shape[0], Hk=None, M=None)
    if position.dtype != torch.int32 or out.dtype != torch.float32 or out.stride(2) != 1:
        raise ConfigError(f"position is {position.dtype}, out {out.dtype}; want int32 and float32, contiguous")
    require_device(position=position, out=out)
    places, heads, blocks = out.shape
    _uniform_kernel[(triton.cdiv(blocks, _TILE), places * heads)](
        position, out, out.stride(0), out.stride(1), blocks, state, block, HEADS=heads, TILE=_TILE, num_warps=4,
        **launch_early(early),
    )  # fmt: skip


@triton.jit
def _taken_in(state, part):
    """Odd multipliers and shifts of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed integers."""
    state = state ^ (part * -7046029254386353131)
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return state ^ ((state >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform_kernel(
    position, out, out_b, out_h, blocks, state, block, HEADS: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr
):
    i_b = (tl.program_id(1) // HEADS).to(tl.int64)
    i_h = (tl.program_id(1) % HEADS).to(tl.int64)
    at = tl.load(position + i_b)
    first = tl.program_id(0) * TILE
    wait_for_kernel_ahead(EARLY)
    if (at >= 0) & (first * block <= at):
        o_b = first + tl.arange(0, TILE)
        b_state = tl.full([TILE], 0, tl.int64) + state
        b_state = _taken_in(_taken_in(b_state, at.to(tl.int64)), i_h)
        b_state = _taken_in(b_state, o_b.to(tl.int64))
        b_score = ((b_state >> 40) & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216)
        tl.store(out + i_b * out_b + i_h * out_h + o_b, b_score, mask=(o_b < blocks) & (o_b * block <= at))
