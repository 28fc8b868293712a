"""oracle: the blocks that truly hold the most attention. A measuring stick, not a method."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.selectors.declaration import SCORE, SELECT, unknown_kind
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Oracle(Selector):
    """Exact attention mass of the true query per block: softmax over every visible token, summed over the group.

    It reads all keys, which no runtime that offloads could afford, so its cost is not counted.
    """

    name: ClassVar[str] = "oracle"
    lead = 0
    measuring = True

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """`score`, then `select`."""
        return (SCORE, SELECT)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Nothing at all; raises PlanError for a kind it never declared."""
        if op.kind not in (SCORE, SELECT):
            raise unknown_kind(self, op)
        return Work(launches=0)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.oracle import BoundOracle

        return BoundOracle()
