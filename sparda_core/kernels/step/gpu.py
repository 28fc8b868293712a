"""The ends of a decode step on a GPU: counters, embedding, and the rows' next token. Each a tiny launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.strides import require_contiguous_rows

#: Hidden values that one program of `embed_tokens` moves.
TILE = 1024


@triton.jit
def _begin_kernel(tick, counts, s_counts, L: tl.constexpr, WIDTH: tl.constexpr):
    tl.store(tick, tl.load(tick) + 1)
    layer = tl.arange(0, WIDTH)
    tl.store(counts + layer * s_counts, tl.zeros([WIDTH], tl.int32), mask=layer < L)


@triton.jit
def _embed_kernel(
    token, position, table, s_table, out, s_out, scale, N: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * TILE + tl.arange(0, TILE)
    active = tl.load(position + row) >= 0
    wanted = tl.load(token + row, mask=active, other=0)
    values = tl.load(table + wanted * s_table + d, mask=active & (d < N), other=0.0).to(tl.float32)
    wait_for_kernel_ahead(EARLY)
    tl.store(out + row * s_out + d, (values * scale).to(out.dtype.element_ty), mask=d < N)


@triton.jit
def _advance_kernel(position, token, sampled, B, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    row = tl.arange(0, WIDTH)
    here = tl.load(position + row, mask=row < B, other=-1)
    active = here >= 0
    wait_for_kernel_ahead(EARLY)
    tl.store(token + row, tl.load(sampled + row, mask=active, other=0), mask=active)
    tl.store(position + row, here + 1, mask=active)


def begin_step(tick: torch.Tensor, counts: torch.Tensor) -> None:
    """See `step.reference.begin_step`; counts may be strided. One launch."""
    require_shape(tick, "tick", one=1)
    require_shape(counts, "counts", L=None)
    require_device(tick=tick, counts=counts)
    layers = counts.shape[0]
    _begin_kernel[(1,)](tick, counts, counts.stride(0), L=layers, WIDTH=padded(layers), num_warps=1)


def embed_tokens(
    token: torch.Tensor, position: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, scale: float = 1.0,
    early: int = AT_END,
) -> None:  # fmt: skip
    """See `step.reference.embed_tokens`, into out [B, hidden] of the table's dtype. One launch.

    early  see `kernels.early`; token and position must not be the previous kernel's doing
    """
    batch, hidden = out.shape
    require_shape(token, "token", B=batch)
    require_shape(position, "position", B=batch)
    require_shape(table, "table", vocab=None, hidden=hidden)
    require_device(token=token, position=position, table=table, out=out)
    require_contiguous_rows(token=token, position=position, table=table, out=out)
    _embed_kernel[(batch, triton.cdiv(hidden, TILE))](
        token, position, table, table.stride(0), out, out.stride(0), scale, N=hidden, TILE=TILE, num_warps=4,
        **launch_early(early),
    )  # fmt: skip


def advance(position: torch.Tensor, token: torch.Tensor, sampled: torch.Tensor, *, early: int = AT_END) -> None:
    """See `step.reference.advance`: position int32 [B], token and sampled int64 [B]. One launch.

    early  see `kernels.early`; position must not be the previous kernel's doing
    """
    (batch,) = position.shape
    require_shape(token, "token", B=batch)
    require_shape(sampled, "sampled", B=batch)
    require_device(position=position, token=token, sampled=sampled)
    require_contiguous_rows(position=position, token=token, sampled=sampled)
    _advance_kernel[(1,)](
        position, token, sampled, batch, WIDTH=padded(batch), num_warps=1, **launch_early(early)
    )
