"""Tensor half of `query`."""

from __future__ import annotations

import torch

from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.selectors.own_query import own_query
from sparda_core.selectors.scored import ScoredSelector


class BoundQuery(ScoredSelector):
    """Scores blocks with the layer's own query."""

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M], per-head softmax over the entries, summed over the group, pooled."""
        return query_block_scores(own_query(view), view.entries, view.positions, view.spec)
