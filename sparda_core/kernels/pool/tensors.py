"""Entry scores to block scores by a few operations on whole tensors, wherever they lie."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812


def pool_blocks(scores: torch.Tensor, *, per_block: int, blocks: int, spill: int = 1) -> torch.Tensor:
    """See `pool.reference.pool_blocks`, which this equals exactly: a block's own entries, and the `spill` before."""
    if not blocks:
        return scores.new_empty(*scores.shape[:-1], 0)
    held = blocks * per_block
    known = torch.where(scores.isnan(), -torch.inf, scores)[..., :held]
    padded = F.pad(known, (spill, held - known.shape[-1]), value=-torch.inf)
    return padded.unfold(-1, per_block + spill, per_block).amax(-1)
