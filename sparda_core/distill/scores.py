"""Scores of entries and blocks at chosen query positions, as plain differentiable tensors.

Axes: H query heads, G KV heads, T tokens, Q query positions, C entries, N blocks, D head dimension.
Positions are absolute in the window; entry c is the mean of keys [stride * c, stride * c + window).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.shapes import BlockSpec


def entries_of(k_GTD: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Mean of every full window of keys, float [G, C, D] in k's dtype; C is 0 below one window."""
    if k_GTD.shape[1] < spec.window:
        return k_GTD.new_zeros(k_GTD.shape[0], 0, k_GTD.shape[2])
    return k_GTD.unfold(1, spec.window, spec.stride).mean(-1)


def visible_entries(positions_Q: torch.Tensor, count: int, spec: BlockSpec) -> torch.Tensor:
    """Bool [Q, C]: an entry is visible once its last token is not after the query."""
    last_C = torch.arange(count, device=positions_Q.device) * spec.stride + spec.window - 1
    return last_C[None, :] <= positions_Q[:, None]


def free_blocks(positions_Q: torch.Tensor, blocks: int, spec: BlockSpec) -> torch.Tensor:
    """Bool [Q, N]: neither sink, nor in the local band, nor in the future."""
    block_N = torch.arange(blocks, device=positions_Q.device)
    current_Q = positions_Q // spec.block
    return (block_N >= spec.sink)[None, :] & (block_N[None, :] < current_Q[:, None] - spec.local)


def query_entry_scores(q_HQD: torch.Tensor, entries_GCD: torch.Tensor, visible_QC: torch.Tensor) -> torch.Tensor:
    """Sum over a group of per-head softmax over visible entries, [G, Q, C]; 0 where invisible.

    A query that sees no entry has all zeros. This is the query-driven selector's score (InfLLM-V2).
    """
    groups = entries_GCD.shape[0]
    q_GhQD = q_HQD.reshape(groups, -1, *q_HQD.shape[1:])
    logit: torch.Tensor = q_GhQD @ entries_GCD[:, None].transpose(-1, -2) / q_HQD.shape[-1] ** 0.5
    logit = logit.masked_fill(~visible_QC, -torch.inf)
    return logit.softmax(-1).nan_to_num(0.0).sum(1)


def forecast_entry_scores(f_GQD: torch.Tensor, entries_GCD: torch.Tensor, visible_QC: torch.Tensor) -> torch.Tensor:
    """Dot products / sqrt(D), [G, Q, C]; -inf where invisible. No softmax: one head a group needs none."""
    score: torch.Tensor = f_GQD @ entries_GCD.transpose(-1, -2) / f_GQD.shape[-1] ** 0.5
    return score.masked_fill(~visible_QC, -torch.inf)


def bias_block_scores(bias_GT: torch.Tensor, positions_Q: torch.Tensor, blocks: int, spec: BlockSpec) -> torch.Tensor:
    """Block scores of the tokens' bias, [G, Q, N]: its means over windows, pooled as entry scores are.

    A query sees the means that end no later than it; a block without one gets -inf. Source: NOSA (arXiv 2510.13602),
    selection of its release.
    """
    means_GC = entries_of(bias_GT[..., None], spec)[..., 0]
    seen_QC = visible_entries(positions_Q, means_GC.shape[1], spec)
    return pool_blocks(torch.where(seen_QC, means_GC[:, None], -torch.inf), blocks, spec)


def pool_blocks(score_GQC: torch.Tensor, blocks: int, spec: BlockSpec) -> torch.Tensor:
    """Maximum over the entries that touch a block, [G, Q, N]; -inf where there is none.

    Block b pools entries R*b - spill .. R*b + R - 1 with R = block / stride.
    """
    per_block = spec.entries_per_block
    right = per_block * blocks - score_GQC.shape[-1]
    padded = F.pad(score_GQC, (spec.spill, right), value=-torch.inf)
    return padded.unfold(-1, spec.pool_width, per_block).amax(-1)
