"""Scoring with the Forecast: one dot product per entry, no softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.kernels.arrays import compute_dtype
from sparda_core.kernels.pool.reference import pool_blocks
from sparda_core.kernels.visible import blocks_to_score, visible_entries
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec


def forecast_block_scores(
    forecast: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec,
    pool: Callable[..., torch.Tensor] = pool_blocks,
) -> torch.Tensor:  # fmt: skip
    """Block scores of a Forecast (SparDA, section 3): forecast . entry, the best entry of each block.

    forecast   float [B, Hk, T, D], post-RoPE
    entries    of the target layer, post-RoPE
    positions  int64 [B, T], absolute; negative for an inactive row
    returns    [B, Hk, T, M], M = max(positions) // block + 1, float64 if an input is, else float32; an
               entry counts once its last token is no later than the query; blocks without one get -inf
    """
    dtype = compute_dtype(forecast, entries.buffer)
    keys = entries.padded().to(dtype)
    scores = torch.einsum("bhtd,bhcd->bhtc", forecast.to(dtype), keys)
    seen = visible_entries(entries.counts, positions, spec, width=keys.shape[2])
    scores = torch.where(seen[:, None], scores, -torch.inf)
    blocks = blocks_to_score(positions, spec)
    return pool(scores, per_block=spec.entries_per_block, blocks=blocks, spill=spec.spill)
