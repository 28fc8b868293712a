"""Hidden states that follow a Forecast's own selections: what it will meet when it is used (on-policy distillation).

A Forecast that is trained on the states of dense attention meets other ones in decode, where every layer before has
attended to what the Forecast chose, and mistakes can add up. Here the frozen model reads a row as decoding would, each
token after the prompt attending to what the Forecast, as it stands, selects. Teacher and student see the same states.

The published training has the layers attend to what the *teacher* selects, since its models were made for that: the
same, with the teacher's scores in place of the Forecast's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import torch

from sparda_core.distill.lesson import LayerLesson, earlier_input
from sparda_core.distill.objectives import BlockScores, Objective
from sparda_core.distill.selected import Selection
from sparda_core.models.decoder import Projections

#: What the states of a run follow, by name: attention to everything, or to what Forecast or teacher select.
DENSE, FORECAST, TEACHER = "dense", "forecast", "teacher"
STATES = (DENSE, FORECAST, TEACHER)


@attrs.frozen(kw_only=True, eq=False)
class OwnStates:
    """Attention of one row of documents, layer after layer, by the selections of a Forecast or a teacher.

    weights  [G * D, hidden] by the layer that is forecast
    teacher  the objective whose teacher selects; the Forecast does if left out
    """

    selection: Selection
    weights: Sequence[torch.Tensor]
    lead: int
    teacher: Objective | None = None
    _inputs: deque[torch.Tensor] = attrs.field(factory=deque, init=False)

    def attend(self, layer: int, p: Projections, lengths: Sequence[int]) -> torch.Tensor:
        """Attention of `layer`, [1, Hq, T, D]; layers must come in order. No gradient."""
        with torch.no_grad():
            earlier_TE = earlier_input(self._inputs, p.x_norm[0], self.lead)
            return self.selection.attend(layer, p, earlier_TE, lengths, self._scores)

    def _scores(self, lesson: LayerLesson) -> BlockScores:
        """How blocks of this document and layer are scored."""
        if self.teacher is not None:
            return self.teacher.selection(lesson)
        weight = self.weights[lesson.layer].to(lesson.x_before)
        return lambda part: part.student(weight)
