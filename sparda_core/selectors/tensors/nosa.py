"""Tensor half of `nosa` and `nosa-forecast`."""

from __future__ import annotations

import torch

from sparda_core.errors import PlanError
from sparda_core.kernels.shortlist.cpu import shortlist_scores
from sparda_core.layer_view import EntryView, LayerView
from sparda_core.selector import BoundSelector
from sparda_core.selectors.nosa import SHORTLIST, NosaDeclaration
from sparda_core.selectors.scored import ScoredSelector


class BoundNosa(ScoredSelector):
    """Between another method's scores and the choice, ranks what the scores left out by its bias."""

    def __init__(self, first: BoundSelector, declared: NosaDeclaration) -> None:
        assert isinstance(first, ScoredSelector)
        self._first, self._declared = first, declared

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, M], of the first stage."""
        return self._first.scores(view)

    def run(self, kind: str, view: LayerView) -> None:
        """`shortlist` turns view.scores into those of the two-stage choice; see ScoredSelector for the others."""
        if kind != SHORTLIST:
            super().run(kind, view)
            return
        if view.scores is None:
            raise PlanError(f"shortlist/{view.layer} runs before score/{view.layer}: a plan must score first")
        keep = self._declared.keep(view.spec)
        view.scores = shortlist_scores(view.scores, means_of(view), view.positions, view.spec, keep=keep)


def means_of(view: LayerView) -> EntryView:
    """view.bias; raises PlanError where the model has no token bias."""
    if view.bias is None:
        raise PlanError(f"layer {view.layer} shows no token bias: the model has none, and no plan of ours asks for it")
    return view.bias
