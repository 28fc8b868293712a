"""Tensor half of `infinigen`."""

from __future__ import annotations

import torch

from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.selectors.infinigen import PROXY
from sparda_core.selectors.own_query import own_query
from sparda_core.selectors.scored import ScoredSelector
from sparda_core.selectors.tensors.proxy_scores import ProxyScorer


class BoundInfiniGen(ScoredSelector):
    """Makes the proxy query and hands it to a scorer; falls to the own query in prefill and in the first layers."""

    def __init__(self, scorer: ProxyScorer) -> None:
        self.scorer = scorer

    def run(self, kind: str, view: LayerView) -> None:
        """`proxy` leaves the proxy query in view.scratch; the rest as every scored method."""
        if kind == PROXY:
            view.scratch[PROXY] = view.query_of(view.layer, view.x, view.positions)
        else:
            super().run(kind, view)

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M] from the proxy query, or from the own query where the layer selects for itself."""
        if view.source == view.layer:
            return query_block_scores(own_query(view), view.entries, view.positions, view.spec)
        return self.scorer.block_scores(view.scratch[PROXY], view)

    def observe(self, view: LayerView, key: torch.Tensor) -> None:
        """Let the scorer see the new tokens of view.layer."""
        self.scorer.observe(view, key)

    def row_forked(self, source: int, copy: int) -> None:
        """What is known of the source is known of the copy."""
        self.scorer.row_forked(source, copy)

    def row_reads(self, row: int, tokens: int) -> None:
        """Keep what is known, in case the prompt is taken back."""
        self.scorer.row_reads(row, tokens)

    def row_cropped(self, row: int, tokens: int) -> None:
        """Forget what came after the first `tokens` tokens."""
        self.scorer.row_cropped(row, tokens)

    def row_retired(self, row: int) -> None:
        """Forget the row."""
        self.scorer.row_retired(row)
