"""Hidden states that follow a Forecast's own selections: what it will meet when it is used (on-policy distillation).

A Forecast that is trained on the states of dense attention meets other ones in decode, where every layer before has
attended to what the Forecast chose, and mistakes can add up. Here the frozen model reads a row as decoding would, each
token after the prompt attending to what the Forecast, as it stands, selects. Teacher and student see the same states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import torch

from sparda_core.distill.lesson import earlier_input
from sparda_core.distill.selected import Selection
from sparda_core.models.decoder import Projections

#: What the states of a run follow, by name: attention to everything, or to what the Forecast in training selects.
DENSE, FORECAST = "dense", "forecast"
STATES = (DENSE, FORECAST)


@attrs.frozen(kw_only=True, eq=False)
class OwnStates:
    """Attention of one row of documents, layer after layer, by the selections of a Forecast.

    weights  [G * D, hidden] by the layer that is forecast
    """

    selection: Selection
    weights: Sequence[torch.Tensor]
    lead: int
    _inputs: deque[torch.Tensor] = attrs.field(factory=deque, init=False)

    def attend(self, layer: int, p: Projections, lengths: Sequence[int]) -> torch.Tensor:
        """Attention of `layer`, [1, Hq, T, D]; layers must come in order. No gradient."""
        weight = self.weights[layer]
        with torch.no_grad():
            earlier_TE = earlier_input(self._inputs, p.x_norm[0], self.lead)
            return self.selection.attend(
                layer, p, earlier_TE, lengths, lambda lesson: lesson.student(weight.to(lesson.x_before))
            )
