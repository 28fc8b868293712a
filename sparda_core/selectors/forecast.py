"""forecast: blocks chosen one layer early by a trained fourth projection (SparDA)."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.selector import BoundSelector
from sparda_core.selectors.declaration import ScoringDeclaration
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Forecast(ScoringDeclaration):
    """Layer l's Forecast, one head per KV head, dotted with layer l + 1's entries and max-pooled to blocks.

    No softmax and no scale: neither changes the order within one head. The first layer selects with
    its own Forecast. Source: SparDA, section 3.
    """

    name: ClassVar[str] = "forecast"
    lead = 1
    needs = frozenset({"forecast"})

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Hk heads, one pass over the entries."""
        from sparda_core.kernels.score_forecast.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.forecast import BoundForecast

        return BoundForecast()
