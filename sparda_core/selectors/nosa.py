"""nosa, nosa-forecast: some blocks by the query, or by a Forecast; the others by their tokens' learned bias (NOSA)."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, DeviceSizes
from sparda_core.selectors.declaration import SCORE, SELECT, ScoringDeclaration
from sparda_core.selectors.forecast import Forecast
from sparda_core.selectors.query import Query
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.work import Work, WorkContext

#: The operation that picks the first blocks by the scores just made, and ranks all others by their bias.
SHORTLIST = "shortlist"


@attrs.frozen(kw_only=True)
class NosaDeclaration(ScoringDeclaration):
    """The best `select_blocks` blocks by a score, beside the sink and local ones; the budget's rest by the bias.

    A block's bias score is pooled as entry scores are: means of `window` tokens' biases, the best of those that reach
    into the block. It does not depend on the query, so that part of the selection stays from step to step. Attention
    adds the bias to the logits of chosen tokens, whatever the selector: that is the model's own (models/token_bias.py).
    Equal scores go to the lower id in both stages. Source: NOSA (arXiv 2510.13602).

    select_blocks  blocks of the first stage beside sink and `local`; the query's own block is one of them, so that
                   sink + local + select_blocks in all are chosen by the score: 41 of 96 at NOSA-8B's 1, 16 and 24
    """

    needs = frozenset({"token_bias"})

    select_blocks: int = attrs.field(default=24)

    @select_blocks.validator
    def _counts_blocks(self, attribute: attrs.Attribute[int], value: Any) -> None:
        check_integer("select_blocks", value, 1)

    def keep(self, spec: BlockSpec) -> int:
        """Blocks of the first stage, forced ones included; raises ConfigError where the budget is smaller."""
        keep = spec.sink + spec.local + self.select_blocks
        if keep > spec.budget:
            raise ConfigError(
                f"budget={spec.budget} must be >= {keep} for selector {self.name!r} (sink={spec.sink} + "
                f"local={spec.local} + select_blocks={self.select_blocks}): raise budget, or lower select_blocks"
            )
        return keep

    def check(self, shape: ModelShape, spec: BlockSpec) -> None:
        """Raise ConfigError for a model without a token bias, and for a budget below the first stage."""
        if not shape.token_bias:
            raise ConfigError(
                f"selector={self.name!r} needs a model with a token bias, and {shape.name!r} has none: take a NOSA "
                "model (shape 'nosa-8b'), or choose selector 'query' or 'forecast'"
            )
        self.keep(spec)

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """`score`, `shortlist`, then `select`."""
        return (SCORE, SHORTLIST, SELECT)

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Work of one of the three; raises PlanError for another kind."""
        if op.kind == SHORTLIST:
            from sparda_core.kernels.shortlist.work import work

            return work(op, facts, context)
        return super().work(op, facts, context)

    @abc.abstractmethod
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Work of the first stage's scores."""


@attrs.frozen(kw_only=True)
class Nosa(NosaDeclaration):
    """A first stage that scores as `query` does, with the layer's own query; the rest by their tokens' bias."""

    name: ClassVar[str] = "nosa"

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Hq heads, two passes over the entries."""
        from sparda_core.kernels.score_query.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state, since the cache keeps the bias."""
        from sparda_core.selectors.tensors.nosa import BoundNosa

        return BoundNosa(Query().bind(shape=shape, spec=spec), self)

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """One layer's logits, as `query` keeps them."""
        return Query().device_bytes(sizes)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state but the scratch of `query`."""
        from sparda_core.selectors.device.nosa import DeviceNosa

        return DeviceNosa(room, Query().bind_device(room), self)


@attrs.frozen(kw_only=True)
class NosaForecast(NosaDeclaration):
    """The first stage scores as `forecast` does, `lead` layers early; the first layers with Forecasts of their own.

    lead  as of `forecast`
    """

    name: ClassVar[str] = "nosa-forecast"
    needs = frozenset({"forecast", "token_bias"})

    lead: int = attrs.field(default=1)

    @lead.validator
    def _counts_layers(self, attribute: attrs.Attribute[int], value: Any) -> None:
        check_integer("lead", value, 0)

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Hk heads, one pass over the entries."""
        from sparda_core.kernels.score_forecast.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state. Raises ConfigError at lead 0, for which there are no Forecasts."""
        from sparda_core.selectors.tensors.nosa import BoundNosa

        return BoundNosa(Forecast(lead=self.lead).bind(shape=shape, spec=spec), self)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state. Raises ConfigError at lead 0, for which there are no Forecasts."""
        from sparda_core.selectors.device.nosa import DeviceNosa

        return DeviceNosa(room, Forecast(lead=self.lead).bind_device(room), self)
