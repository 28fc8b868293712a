"""Facts of a step, read from what its kernels counted on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.facts import StepFacts
from sparda_core.runtimes.gpu.tier import LayerTier
from sparda_core.shapes import BlockSpec


def counted_facts(
    tiers: Sequence[LayerTier], places: Sequence[int], active: npt.NDArray[np.bool_], lengths: npt.NDArray[np.int64], *,
    spec: BlockSpec, slots: int, resident: int, takes_every_block: bool,
) -> StepFacts:  # fmt: skip
    """Facts of the last step, rows in the order of `places`. Waits for the device.

    lengths            int64 [B], tokens after the step; 0 where a row was not active
    resident           first layers, which miss nothing
    takes_every_block  whether attention of a resident layer takes every block, so that its choice is never written
    Late blocks are not counted: `late.with_late` adds them where there is a timeline.
    """
    device = tiers[0].choice.counts.device
    at = torch.tensor(list(places), dtype=torch.int64, device=device)
    counts = torch.stack([tier.choice.counts for tier in tiers])[:, at].cpu().numpy().astype(np.int64)
    if takes_every_block:
        blocks = (lengths + spec.block - 1) // spec.block
        counts[:resident] = blocks[None, :, None]
    none, mask = np.zeros(counts.shape, np.int64), active[None, :, None]
    misses = none.copy()
    diffs = [tier.diff.misses for tier in tiers[resident:] if tier.diff is not None]
    if diffs:
        misses[resident:] = torch.stack(diffs)[:, at].cpu().numpy()
    opened = np.broadcast_to(((lengths - 1) % spec.block == 0)[None, :, None], counts.shape).astype(np.int64)
    return StepFacts(
        new_tokens=1, budget=spec.budget, slots=slots, active=active, lengths=lengths,
        selected=counts * mask, misses=misses * mask, opened=opened * mask, late=none, wasted=none,
    )  # fmt: skip
