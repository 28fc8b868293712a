"""What a selector launches in a measured cell, where a trace stands in place of its choice. Torch-free."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.selectors.declaration import SELECT
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class TracedWork(Selector):
    """Every kernel of `inner`, then one that plays the trace: so the choice and the diff are launches of their own.

    See `bench/decode/traced.py`, which runs it. A selector that takes every block plays nothing, and is as it is.
    """

    name: ClassVar[str] = "traced"
    inner: Selector

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """As the inner selector."""
        return self.inner.operations(target, phase, lead)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """As the inner selector's; a choice has a launch of its own, and the trace's behind it."""
        work = self.inner.work(op, facts, context)
        if op.kind != SELECT:
            return work
        return attrs.evolve(work, launches=max(1, work.launches) + 1)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """As the inner selector."""
        return self.inner.bind(shape=shape, spec=spec)
