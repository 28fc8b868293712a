"""Two-stage choice: the best blocks by one score come first, all others rank by their tokens' bias."""

from __future__ import annotations

import torch

from sparda_core.kernels.pool.reference import pool_blocks
from sparda_core.kernels.topk.reference import choose_blocks
from sparda_core.kernels.visible import visible_entries
from sparda_core.layer_view import EntryView
from sparda_core.selection import NO_BLOCK
from sparda_core.shapes import BlockSpec


def bias_block_scores(means: EntryView, positions: torch.Tensor, spec: BlockSpec, *, blocks: int) -> torch.Tensor:
    """Block scores of the bias: means of `window` tokens' biases, pooled to blocks as entry scores are.

    means      EntryView of width 1, [R, Hk, capacity, 1]: mean c covers the tokens of entry c
    positions  int64 [B, T]; a query sees the means that end no later than it
    blocks     M, blocks to score; those without a mean get -inf
    returns    [B, Hk, T, M]
    """
    values = means.padded()[..., 0]
    seen = visible_entries(means.counts, positions, spec, width=values.shape[-1])
    shown = torch.where(seen[:, None], values[:, :, None], -torch.inf)
    return pool_blocks(shown, per_block=spec.entries_per_block, blocks=blocks, spill=spec.spill)


def shortlist_scores(
    scores: torch.Tensor, means: EntryView, positions: torch.Tensor, spec: BlockSpec, *, keep: int
) -> torch.Tensor:
    """Scores by which `choose_blocks` makes the two-stage choice, in the dtype of `scores`.

    scores  float [B, Hk, T, M], of the first stage
    keep    blocks of the first stage, forced ones included: they get +inf; ties go to the lower id
    The others get the block score of their bias. Source: NOSA (arXiv 2510.13602), selection of its release.
    """
    first = choose_blocks(scores, positions, spec.with_budget(keep))
    ranked = bias_block_scores(means, positions, spec, blocks=scores.shape[-1]).to(scores.dtype)
    for place in (first != NO_BLOCK).nonzero().tolist():
        block = int(first[tuple(place)])
        if block < ranked.shape[-1]:
            ranked[(*place[:3], block)] = torch.inf
    return ranked
