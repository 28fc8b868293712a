"""Selections that need no scores, written on a GPU: forced blocks, every block, blocks of a recorded trace."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import LIMIT, BlockSpec


def list_forced(position: torch.Tensor, spec: BlockSpec, choice: Choice, *, early: int = AT_END) -> None:
    """The blocks that every selection holds: sink and local band, `BlockSpec.forced_blocks`; one launch.

    position  int32 [B]; -1: the place selects nothing
    choice    blocks int32 [B, Hk, W], W >= spec.forced, and counts; every place is written
    early     see `kernels.early`; position must not be the previous kernel's doing
    """
    _list(position, spec.block, spec.sink, spec.local, choice, early)


def list_all(position: torch.Tensor, spec: BlockSpec, choice: Choice, *, early: int = AT_END) -> None:
    """Every block up to each row's current one; no row may reach more than W of them. One launch; see `list_forced`."""
    _list(position, spec.block, 0, LIMIT - 1, choice, early)


def play_step(
    trace: torch.Tensor, layer: int, counter: torch.Tensor, first: int, position: torch.Tensor, choice: Choice, *,
    early: int = AT_END,
) -> None:  # fmt: skip
    """A layer's blocks of the trace's step counter - first; one launch.

    trace     int32 [T, L, R, Hk, V], V <= W, ascending logical blocks, -1 last; place b plays row b, R >= B
    counter   int32 [1], on the device
    position  int32 [B]; -1: the place selects nothing
    choice    every place is written; outside of 0 .. T - 1 nothing is selected
    early     see `kernels.early`; nothing that is read must be the previous kernel's doing
    """
    _play(trace, layer, (counter, None, None), first, position, choice, early)


def play_position(
    trace: torch.Tensor, layer: int, steps: torch.Tensor, column: torch.Tensor, first: int, position: torch.Tensor,
    choice: Choice, unserved: torch.Tensor, *, early: int = AT_END,
) -> None:  # fmt: skip
    """A layer's blocks of the steps that were recorded at the rows' positions; one launch.

    trace     as in `play_step`; place b plays row column[b]
    steps     int32 [R, P]: step at which a row had position first + p; -1 where it never had
    column    int32 [B]; -1: nothing is selected
    choice    every place is written; at a position that was not recorded nothing is selected
    unserved  int32 [1], grows by one for every active place that is left without a selection
    early     as in `play_step`
    """
    _play(trace, layer, (unserved, steps, column), first, position, choice, early)


def _list(position: torch.Tensor, block: int, sink: int, local: int, choice: Choice, early: int) -> None:
    _check(position, choice)
    places, heads, width = choice.blocks.shape
    _list_kernel[(places * heads,)](
        position, choice.blocks, choice.counts, *choice.blocks.stride()[:2], choice.counts.stride(0), block, sink,
        local, HEADS=heads, WIDTH=width, WIDTH_PAD=padded(width), NONE=NO_BLOCK, num_warps=1, **launch_early(early),
    )  # fmt: skip


def _play(
    trace: torch.Tensor, layer: int, source: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    first: int, position: torch.Tensor, choice: Choice, early: int,
) -> None:  # fmt: skip
    _check(position, choice)
    counter, steps, column = source
    places, heads, width = choice.blocks.shape
    require_shape(trace, "trace", T=None, L=None, R=None, Hk=heads, V=None)
    if trace.dtype != torch.int32 or not trace.is_contiguous():
        raise ConfigError(f"trace is {trace.dtype} with strides {trace.stride()}; want int32, contiguous")
    rows, wide = trace.shape[2], trace.shape[4]
    if not 0 <= layer < trace.shape[1] or wide > width or (column is None and rows < places):
        raise ConfigError(
            f"trace of {trace.shape[1]} layers, {rows} rows and width {wide} cannot serve layer {layer}, "
            f"{places} rows and budget {width}"
        )
    require_device(trace=trace, position=position, counter=counter, steps=steps, column=column)
    _play_kernel[(places * heads,)](
        trace, counter, steps, column, position, choice.blocks, choice.counts, *trace.stride()[:4],
        0 if steps is None else steps.stride(0), *choice.blocks.stride()[:2], choice.counts.stride(0), layer, first,
        trace.shape[0], 0 if steps is None else steps.shape[1], HEADS=heads, WIDTH=width, WIDTH_PAD=padded(width),
        TRACE_WIDTH=wide, BY_POSITION=steps is not None, NONE=NO_BLOCK, num_warps=1,
        **launch_early(early),
    )  # fmt: skip


def _check(position: torch.Tensor, choice: Choice) -> None:
    places, heads, _ = choice.blocks.shape
    require_shape(position, "position", B=places)
    require_shape(choice.counts, "counts", B=places, Hk=heads)
    for name, tensor in (("position", position), ("blocks", choice.blocks), ("counts", choice.counts)):
        if tensor.dtype != torch.int32 or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
            strides = tensor.stride()
            raise ConfigError(f"{name} is {tensor.dtype} with strides {strides}; want int32, its last axis contiguous")
    require_device(position=position, blocks=choice.blocks, counts=choice.counts)


@triton.jit
def _list_kernel(
    position, blocks, counts, blocks_b, blocks_h, counts_b, block, sink, local,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, NONE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(0) // HEADS).to(tl.int64)
    i_h = (tl.program_id(0) % HEADS).to(tl.int64)
    at = tl.load(position + i_b)
    current = tl.where(at >= 0, at // block, -1)
    band = tl.maximum(current - local, 0)
    taken = tl.minimum(band, sink)
    o_w = tl.arange(0, WIDTH_PAD)
    wait_for_kernel_ahead(EARLY)
    b_id = tl.where(o_w < taken, o_w, band + o_w - taken)
    tl.store(blocks + i_b * blocks_b + i_h * blocks_h + o_w, tl.where(b_id <= current, b_id, NONE), mask=o_w < WIDTH)
    tl.store(counts + i_b * counts_b + i_h, taken + current + 1 - band)


@triton.jit
def _play_kernel(
    trace, counter, steps, column, position, blocks, counts, trace_t, trace_l, trace_r, trace_h, steps_r,
    blocks_b, blocks_h, counts_b, layer, first, known, span,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, TRACE_WIDTH: tl.constexpr,
    BY_POSITION: tl.constexpr, NONE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b = (tl.program_id(0) // HEADS).to(tl.int64)
    i_h = (tl.program_id(0) % HEADS).to(tl.int64)
    at = tl.load(position + i_b)
    if BY_POSITION:
        i_r = tl.load(column + i_b).to(tl.int64)
        here = (at >= 0) & (i_r >= 0) & (at >= first) & (at - first < span)
        step = tl.load(steps + i_r * steps_r + (at - first), mask=here, other=-1)
    else:
        i_r = i_b
        step = tl.where(at >= 0, tl.load(counter) - first, -1)
    here = (step >= 0) & (step < known)
    o_w = tl.arange(0, WIDTH_PAD)
    p_trace = trace + step.to(tl.int64) * trace_t + layer * trace_l + i_r * trace_r + i_h * trace_h + o_w
    b_id = tl.load(p_trace, mask=here & (o_w < TRACE_WIDTH), other=NONE)
    wait_for_kernel_ahead(EARLY)
    if BY_POSITION:
        tl.atomic_add(counter, 1, mask=(at >= 0) & (step < 0) & (i_h == 0))
    tl.store(blocks + i_b * blocks_b + i_h * blocks_h + o_w, b_id, mask=o_w < WIDTH)
    tl.store(counts + i_b * counts_b + i_h, tl.sum((b_id != NONE).to(tl.int32), axis=0))
