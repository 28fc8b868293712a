"""What the last step of a GPU session selected, read back: for recordings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.runtimes.gpu.tier import LayerTier
from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import BlockSpec


def selection_of(
    tiers: Sequence[LayerTier], places: Sequence[int], lengths: npt.NDArray[np.int64], spec: BlockSpec, *,
    unlisted: int,
) -> npt.NDArray[np.int32]:  # fmt: skip
    """int32 [L, B, Hk, budget], rows in the order of `places`, as in docs/design.md; NO_BLOCK for a row of length 0.

    lengths   tokens after the step; 0 where a row sat it out
    unlisted  first layers whose attention took every block, so that nothing listed them
    Raises ConfigError where such a list would be wider than the budget.
    """
    device = tiers[0].choice.blocks.device
    at = torch.tensor(list(places), dtype=torch.int64, device=device)
    blocks = torch.stack([tier.choice.blocks.index_select(0, at) for tier in tiers]).cpu().numpy()
    counts = torch.stack([tier.choice.counts.index_select(0, at) for tier in tiers]).cpu().numpy()
    every = np.array([spec.block_count(int(length)) for length in lengths], np.int64)
    if unlisted and every.max(initial=0) > spec.budget:
        raise ConfigError(
            f"budget={spec.budget} must be >= {every.max()} to list what was selected: attention took every block"
        )
    numbers = np.arange(spec.budget, dtype=np.int32)
    blocks[:unlisted], counts[:unlisted] = numbers, every[None, :, None]
    known = (numbers < counts[..., None]) & (lengths > 0)[None, :, None, None]
    return np.where(known, blocks, np.int32(NO_BLOCK))
