"""What most declarations share: a method that scores blocks, and the one top-k of the package."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeVar

import attrs

from sparda_core.errors import PlanError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import DeviceSizes, Selector
from sparda_core.work import Work, WorkContext

#: Kinds of a method that scores every block and keeps the best.
SCORE, SELECT = "score", "select"

T = TypeVar("T", bound=Callable[..., Work])


def layers_alike(method: T) -> T:
    """Mark `work` or `score_work`: within a step layers differ by how early they know and where they lie, if at all.

    The mark is the method's own. A subclass that states other work has no mark unless it sets one.
    """
    method.__dict__["layers_alike"] = True
    return method


def _marked(method: Callable[..., Work]) -> bool:
    return method.__dict__.get("layers_alike", False) is True


class ScoringDeclaration(Selector):
    """Scores, then selects, in every layer and phase. Narrow hook: `score_work`."""

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """`score`, then `select`."""
        return (SCORE, SELECT)

    @layers_alike
    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Work of `score` or `select`; raises PlanError for another kind."""
        if op.kind == SCORE:
            return self.score_work(op, facts, context)
        if op.kind == SELECT:
            return self._select_work(op, facts, context)
        raise unknown_kind(self, op)

    def tells_apart(self, op: Op, facts: StepFacts, context: WorkContext) -> tuple[object, ...] | None:
        """How early a layer knows and whether it is offloaded, where the methods that state its work are marked."""
        own = type(self)
        stated = {SCORE: own.score_work, SELECT: own._select_work}.get(op.kind)  # noqa: SLF001 -- its own class
        if stated is None or not (_marked(own.work) and _marked(stated)):
            return None
        return op.layer - op.source, op.layer >= context.resident_layers

    @layers_alike
    def _select_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """In decode an offloaded layer's diff chooses along, in its own launch."""
        from sparda_core.kernels.topk.work import work

        along = facts.new_tokens == 1 and facts.slots > 0 and op.layer >= context.resident_layers
        return attrs.evolve(work(op, facts, context), launches=int(not along))

    @abc.abstractmethod
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Work of scoring every visible block of every active row."""


class ListingDeclaration(Selector):
    """Writes its selection down without scoring anything: one operation."""

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """`select` alone."""
        return (SELECT,)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Writing the ids, 4 bytes each; raises PlanError for another kind."""
        if op.kind != SELECT:
            raise unknown_kind(self, op)
        from sparda_core.kernels.listed.work import work

        return work(op, facts, context)


def own_query_bytes(sizes: DeviceSizes) -> int:
    """Bytes that a GPU half keeps for scoring with a layer's own query: one layer's logits, as layers score in turn."""
    from sparda_core.kernels.score_query.splits import scratch_bytes

    entries = sizes.spec.entry_count(sizes.tokens)
    return scratch_bytes(places=sizes.places, q_heads=sizes.shape.q_heads, entries=entries)


def unknown_kind(selector: Selector, op: Op) -> PlanError:
    """The error for an operation that a selector never declared."""
    return PlanError(f"op {op.name!r} is not one of selector {selector.name!r}'s operations")
