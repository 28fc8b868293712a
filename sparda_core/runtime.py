"""Runtime: where do blocks live, and when do they move?

A runtime has two halves. The declaration (`Runtime`) is torch-free and writes plans; `open` gives a
`Session`, which holds rows and runs those plans.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

from sparda_core.errors import CombinationError, ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Phase, StepPlan
from sparda_core.policy import LAST_SELECTION, SCORE, check_policy
from sparda_core.selector import Granularity, Selector
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.spans import Timeline

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True)
class Runtime(abc.ABC):
    """Declaration of a runtime; frozen, keyword-only options.

    name             registry name
    min_lead         least lead a selector must have
    slots            slots per row and KV head of an offloaded layer; None: as many as the budget
    policy           which blocks stay when slots run out: "last-selection", "lru" or "score" (policy.py)
    engine           how blocks move, by name
    resident_layers  first layers kept on the device whole; None: as many as the lead
    """

    name: ClassVar[str]
    min_lead: ClassVar[int] = 0
    offloads: ClassVar[bool] = False

    slots: int | None = None
    policy: str = LAST_SELECTION
    engine: str = "thread"
    resident_layers: int | None = None

    def lead(self, selector: Selector) -> int:
        """Layers between selecting and attending: the selector's own, or the least this runtime needs."""
        return self.min_lead if selector.lead is None else selector.lead

    def resident_count(self, selector: Selector, shape: ModelShape) -> int:
        """First layers whose every block is on the device."""
        if not self.offloads:
            return shape.layers
        return min(shape.layers, self.lead(selector) if self.resident_layers is None else self.resident_layers)

    def slot_count(self, spec: BlockSpec) -> int:
        """Slots per row and KV head of an offloaded layer."""
        return spec.budget if self.slots is None else self.slots

    def check(self, selector: Selector, shape: ModelShape, spec: BlockSpec) -> None:
        """Raise CombinationError or ConfigError where this runtime cannot serve `selector`."""
        if selector.granularity is not Granularity.BLOCK:
            raise self._refusal(selector, f"it selects by {selector.granularity}, this runtime moves blocks", "query")
        selector.check(shape, spec)
        if selector.lead is not None and selector.lead < self.min_lead:
            early = "nosa-forecast" if "token_bias" in selector.needs else "forecast"
            raise self._refusal(
                selector,
                f"it knows its blocks {selector.lead} layers early and prefetching needs {self.min_lead}",
                f"selector {selector.name!r} with runtime 'offload-sync', or selector {early!r} with {self.name!r}",
            )
        if selector.lead is not None and selector.lead >= shape.layers:
            raise ConfigError(f"lead={selector.lead} must be < layers={shape.layers}: lower the lead")
        if self.offloads:
            self._check_pool(selector, shape, spec)

    def _check_pool(self, selector: Selector, shape: ModelShape, spec: BlockSpec) -> None:
        for name, value in (("slots", self.slots), ("resident_layers", self.resident_layers)):
            if value is not None:
                check_integer(name, value, 0)
        if self.slot_count(spec) < spec.budget:
            raise ConfigError(f"slots={self.slots} must be >= budget={spec.budget}: every selected block needs a slot")
        check_policy(self.policy)
        # "score" is the kind of the operation that leaves block scores (LayerView.scores, DeviceView.scores).
        scores = "score" in selector.operations(shape.layers - 1, Phase.DECODE, self.lead(selector))
        if self.policy == SCORE and not scores:
            raise self._refusal(
                selector, "policy='score' drops the block with the lowest score, and it makes no scores",
                f"selector {selector.name!r} with policy='lru', or selector 'query'",
            )  # fmt: skip
        least = self.lead(selector)
        if self.resident_layers is not None and not least <= self.resident_layers <= shape.layers:
            raise ConfigError(
                f"resident_layers={self.resident_layers} must be between lead={least} and layers={shape.layers}: "
                "no layer is early enough before the first ones to move their blocks"
            )

    def _refusal(self, selector: Selector, reason: str, nearest: str) -> CombinationError:
        return CombinationError(selector=selector.name, runtime=self.name, reason=reason, nearest=nearest)

    @abc.abstractmethod
    def decode_plan(self, *, shape: ModelShape, spec: BlockSpec, selector: Selector) -> StepPlan:
        """One decode step: one token for each active row."""

    @abc.abstractmethod
    def prefill_plan(self, *, shape: ModelShape, spec: BlockSpec, selector: Selector, mode: str) -> StepPlan:
        """One chunk of a row's tokens, appended at any offset.

        mode  "dense": every query attends to all before it; "selector": to its own selection
        """

    @abc.abstractmethod
    def open(self, model: Any, *, selector: Selector, spec: BlockSpec, **options: Any) -> Session:
        """A session of `model` under this runtime; loads torch here and not before."""


@attrs.frozen(kw_only=True)
class StepResult:
    """What one decode step gave.

    logits    [B, vocab], in batch order; rows that sat the step out hold NaN
    facts     what the step met
    timeline  when each operation ran; None unless the session records timelines
    """

    logits: torch.Tensor
    facts: StepFacts
    timeline: Timeline | None = None


class Session(abc.ABC):
    """Rows of one model under one runtime and selector.

    A row is named by the id that `add` or `fork` returned; ids are never used twice. Batch order is
    the order of `rows`. An operation that fails leaves every row as it was.
    """

    #: Whether it draws next tokens itself (`set_sampling`, `run`, `tokens`), so that nobody need look at logits.
    draws: ClassVar[bool] = False

    plan: StepPlan
    spec: BlockSpec

    @property
    @abc.abstractmethod
    def rows(self) -> tuple[int, ...]:
        """Row ids, in batch order."""

    @abc.abstractmethod
    def length(self, row: int) -> int:
        """Tokens of a row in the cache; raises RowError for a row that is not there."""

    @abc.abstractmethod
    def add(self) -> int:
        """A new, empty row at the end of the batch."""

    @abc.abstractmethod
    def retire(self, row: int) -> None:
        """Give a row's memory back."""

    @abc.abstractmethod
    def fork(self, row: int) -> int:
        """A copy of a row, sharing host pages until one of the two writes; at the end of the batch."""

    @abc.abstractmethod
    def crop(self, row: int, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens; raises ConfigError beyond the row's length."""

    @abc.abstractmethod
    def reorder(self, rows: Sequence[int]) -> None:
        """Set the batch order; `rows` must name every row once."""

    @abc.abstractmethod
    def set_budget(self, budget: int) -> None:
        """Change the budget from the next step on; raises ConfigError below the forced blocks or above fixed slots."""

    @abc.abstractmethod
    def prefill(
        self, row: int, tokens: Sequence[int], *, mode: str = "dense", chunk: int = 2048,
        progress: Callable[[int], None] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Append tokens to a row (the first prompt and every later turn alike); logits [vocab] after the last.

        progress is called with the number of tokens done after each chunk.
        """

    @abc.abstractmethod
    def decode(self, tokens: Mapping[int, int]) -> StepResult:
        """One step for the rows named; the others sit it out. tokens: row id -> token id."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop lanes and give memory back; further calls raise. Closing twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
