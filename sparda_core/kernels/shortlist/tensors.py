"""Two-stage choice by a few operations on whole tensors, wherever they lie."""

from __future__ import annotations

import torch

from sparda_core.kernels.pool.tensors import pool_blocks
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.kernels.visible import visible_entries
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec


def shortlist_scores(
    scores: torch.Tensor, means: EntryView, positions: torch.Tensor, spec: BlockSpec, *, keep: int
) -> torch.Tensor:
    """See `shortlist.reference.shortlist_scores`, which this equals exactly."""
    first = choose_blocks(scores, positions, spec.with_budget(keep)).long()
    values = means.padded()[..., 0].to(scores.dtype)
    seen = visible_entries(means.counts, positions, spec, width=values.shape[-1])
    shown = torch.where(seen[:, None], values[:, :, None], -torch.inf)
    ranked = pool_blocks(shown, per_block=spec.entries_per_block, blocks=scores.shape[-1], spill=spec.spill)
    # A column more takes what is no block, or one that nobody scored.
    room = torch.nn.functional.pad(ranked, (0, 1))
    beyond = (first < 0) | (first >= scores.shape[-1])
    return room.scatter(-1, first.masked_fill(beyond, scores.shape[-1]), torch.inf)[..., :-1]
