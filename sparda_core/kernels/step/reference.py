"""Bookkeeping at the ends of a decode step."""

from __future__ import annotations

import torch


def begin_step(tick: torch.Tensor, counts: torch.Tensor) -> None:
    """One more step begun (tick int32 [1]), no miss listed yet (counts int32 [L] all zero); in place."""
    tick += 1
    counts.zero_()


def embed_tokens(token: torch.Tensor, position: torch.Tensor, table: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Rows of `table` [vocab, hidden] times `scale` -> [B, hidden]; zeros where position int [B] is -1.

    token  int64 [B]; may be anything in an inactive place
    """
    out = torch.zeros(token.shape[0], table.shape[1], dtype=table.dtype, device=table.device)
    for row, here in enumerate(position.tolist()):
        if here >= 0:
            out[row] = table[token[row]] * scale
    return out


def advance(position: torch.Tensor, token: torch.Tensor, sampled: torch.Tensor) -> None:
    """Each active row is one token longer (position int32 [B]) and decodes what was sampled next; in place."""
    for row, here in enumerate(position.tolist()):
        if here >= 0:
            position[row] += 1
            token[row] = sampled[row]
