"""Scoring with the true query: each head's attention over the entries, summed over the group."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.kernels.arrays import compute_dtype, group_size
from sparda_core.kernels.pool.reference import pool_blocks
from sparda_core.kernels.visible import blocks_to_score, visible_entries
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec


def score_query(query: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Entry scores of the true query (InfLLM-V2, stage 1).

    query      float [B, Hq, T, D], post-RoPE; head h belongs to KV head h // G
    entries    of the same layer, post-RoPE
    positions  int64 [B, T], absolute; negative for an inactive row
    returns    [B, Hk, T, C], C = most entries of a row, float64 if an input is, else float32: the sum
               over the group's heads of softmax(query . entry / sqrt(D)), taken over the entries whose
               last token is no later than the query; other entries get -inf
    """
    dtype = compute_dtype(query, entries.buffer)
    keys = entries.padded().to(dtype)
    group = group_size(query, keys.shape[1])
    seen = visible_entries(entries.counts, positions, spec, width=keys.shape[2])[:, None]
    total = query.new_zeros((query.shape[0], keys.shape[1], query.shape[2], keys.shape[2]), dtype=dtype)
    for member in range(group):
        heads = query[:, member::group].to(dtype)
        logits = torch.einsum("bhtd,bhcd->bhtc", heads, keys) / query.shape[-1] ** 0.5
        total += torch.softmax(torch.where(seen, logits, -torch.inf), dim=-1)
    return torch.where(seen, total, -torch.inf)


def query_block_scores(
    query: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec,
    pool: Callable[..., torch.Tensor] = pool_blocks,
) -> torch.Tensor:  # fmt: skip
    """Block scores [B, Hk, T, M] of the true query, M = max(positions) // block + 1: `score_query`, pooled."""
    scores = score_query(query, entries, positions, spec)
    blocks = blocks_to_score(positions, spec)
    return pool(scores, per_block=spec.entries_per_block, blocks=blocks, spill=spec.spill)
