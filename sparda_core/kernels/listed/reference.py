"""Selections that need no scores, as plainly as possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import BlockSpec


def list_forced(position: torch.Tensor, spec: BlockSpec, *, heads: int, width: int) -> torch.Tensor:
    """int32 [B, Hk, W]: the forced blocks of each position [B], -1 last; nothing for a negative one."""
    return _filled([spec.forced_blocks(at) if at >= 0 else () for at in position.tolist()], heads, width)


def list_all(position: torch.Tensor, spec: BlockSpec, *, heads: int, width: int) -> torch.Tensor:
    """int32 [B, Hk, W]: every block up to that of each position [B], -1 last; nothing for a negative one."""
    return _filled([range(at // spec.block + 1) for at in position.tolist()], heads, width)


def play(trace: torch.Tensor, layer: int, steps: list[int], columns: list[int], *, width: int) -> torch.Tensor:
    """int32 [B, Hk, W]: row b shows trace[steps[b], layer, columns[b]] [Hk, V]; nothing outside of the trace."""
    out = torch.full((len(steps), trace.shape[3], width), NO_BLOCK, dtype=torch.int32)
    for row, (step, column) in enumerate(zip(steps, columns, strict=True)):
        if 0 <= step < trace.shape[0] and column >= 0:
            out[row, :, : trace.shape[4]] = trace[step, layer, column].cpu()
    return out


def _filled(rows: Sequence[Sequence[int]], heads: int, width: int) -> torch.Tensor:
    out = torch.full((len(rows), heads, width), NO_BLOCK, dtype=torch.int32)
    for row, blocks in enumerate(rows):
        out[row, :, : len(blocks)] = torch.tensor(list(blocks), dtype=torch.int32)
    return out
