"""Scoring with the Forecast on a GPU: dot products pooled in the same launch."""

from __future__ import annotations

import torch

from sparda_core.kernels.early import AT_END
from sparda_core.kernels.pool.gpu import pooled_dots
from sparda_core.shapes import BlockSpec


def forecast_block_scores(
    forecast: torch.Tensor, entries: torch.Tensor, position: torch.Tensor, spec: BlockSpec, unseen: int,
    out: torch.Tensor, *, early: int = AT_END,
) -> None:  # fmt: skip
    """See `score_forecast.reference.forecast_block_scores`, for one query a row; one launch.

    forecast  [B, Hk, D], post-RoPE; with Hq heads, the sum over each group's takes its place
    entries   [B, Hk, C, D]; undefined beyond entry_count(position + 1 - unseen)
    position  int32 [B]; -1: nothing is written for the place
    unseen    newest tokens that the entries do not cover: 1 with a lead, 0 where the layer scores for itself
    out       float32 [B, Hk, M], written up to each row's current block and no further
    early     see `pool.gpu.pooled_dots`
    Products and sums in float32. Raises ConfigError on what does not fit.
    """
    pooled_dots(
        forecast, entries, position, out, block=spec.block, window=spec.window, stride=spec.stride, unseen=unseen,
        early=early,
    )  # fmt: skip
