"""Which entries, tokens and blocks a query may see. One rule for every scoring operator."""

from __future__ import annotations

import torch

from sparda_core.shapes import BlockSpec


def visible_entries(counts: torch.Tensor, positions: torch.Tensor, spec: BlockSpec, *, width: int) -> torch.Tensor:
    """bool [B, T, width]: entry c exists in the row, and its last token is no later than the query.

    counts int64 [B]; positions int64 [B, T]. That is c < count and stride * c + window - 1 <= position.
    """
    entry = torch.arange(width, device=positions.device)
    ended = spec.stride * entry + spec.window - 1 <= positions[..., None]
    return ended & (entry < counts[:, None, None])


def blocks_to_score(positions: torch.Tensor, spec: BlockSpec) -> int:
    """M, blocks up to that of the latest query; 0 where no query is active."""
    return int(positions.max()) // spec.block + 1 if positions.numel() else 0
