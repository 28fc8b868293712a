"""Tensor half of `query`."""

from __future__ import annotations

import torch

from sparda_core.errors import PlanError
from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.selectors.scored import ScoredSelector


class BoundQuery(ScoredSelector):
    """Scores blocks with the layer's own query."""

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M], per-head softmax over the entries, summed over the group, pooled."""
        return query_block_scores(own_query(view), view.entries, view.positions, view.spec)


def own_query(view: LayerView) -> torch.Tensor:
    """view.query [B, Hq, T, D]; raises PlanError in a selection made during another layer."""
    if view.query is None:
        raise PlanError(
            f"selection of layer {view.layer} runs during layer {view.source} and needs the layer's own query: "
            "plan it in its own layer (lead 0)"
        )
    return view.query
