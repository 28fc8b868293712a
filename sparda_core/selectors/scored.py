"""ScoredSelector: the tensor half of every method that gives blocks a score."""

from __future__ import annotations

import abc

import torch

from sparda_core.errors import PlanError
from sparda_core.kernels.topk.choose import choose_blocks
from sparda_core.layer_view import LayerView
from sparda_core.selector import BoundSelector
from sparda_core.selectors.declaration import SCORE, SELECT


class ScoredSelector(BoundSelector):
    """Runs `score` and `select`. Narrow hook: `scores`. The order rule is that of `choose_blocks`."""

    @abc.abstractmethod
    def scores(self, view: LayerView) -> torch.Tensor:
        """Float [B, Hk, T, M], larger is better; blocks at or beyond M rank last.

        Must not write to what the view shows, and must read nothing beyond its counts.
        """

    def run(self, kind: str, view: LayerView) -> None:
        """`score` sets view.scores, `select` sets view.selection from it; another kind raises PlanError."""
        if kind == SCORE:
            view.scores = self.scores(view)
        elif kind == SELECT:
            if view.scores is None:
                raise PlanError(f"select/{view.layer} runs before score/{view.layer}: a plan must score first")
            view.selection = choose_blocks(view.scores, view.positions, view.spec)
        else:
            raise PlanError(f"kind={kind!r} is not bound by {type(self).__name__}; it runs {SCORE!r} and {SELECT!r}")


class ListedSelector(BoundSelector):
    """Runs `select` alone. Narrow hook: `blocks`."""

    @abc.abstractmethod
    def blocks(self, view: LayerView) -> torch.Tensor:
        """A lawful selection, int32 [B, Hk, T, budget]."""

    def run(self, kind: str, view: LayerView) -> None:
        """`select` sets view.selection; another kind raises PlanError."""
        if kind != SELECT:
            raise PlanError(f"kind={kind!r} is not bound by {type(self).__name__}; it runs {SELECT!r}")
        view.selection = self.blocks(view)
