"""forecast: blocks chosen one layer early by a trained fourth projection (SparDA)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import ScoringDeclaration, layers_alike
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Forecast(ScoringDeclaration):
    """Layer l's Forecast, one head per KV head, dotted with layer l + lead's entries and max-pooled to blocks.

    No softmax and no scale: neither changes the order within one head. The first `lead` layers, which no layer is
    early enough before, stay on the device and select with a Forecast of their own. Source: SparDA, section 3, whose
    lead is 1; longer ones are ours.

    lead  layers between selecting and attending: that of the model's Forecast weights where `compose` is given a
          model and no lead. A session refuses another one; a prediction takes any, 0 included
    """

    name: ClassVar[str] = "forecast"
    needs = frozenset({"forecast"})

    lead: int = attrs.field(default=1)

    @lead.validator
    def _counts_layers(self, attribute: attrs.Attribute[int], value: Any) -> None:
        check_integer("lead", value, 0)

    @layers_alike
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Hk heads, one pass over the entries."""
        from sparda_core.kernels.score_forecast.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state. Raises ConfigError at lead 0, for which there are no Forecasts."""
        self._require_trained()
        from sparda_core.selectors.tensors.forecast import BoundForecast

        return BoundForecast()

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state. Raises ConfigError at lead 0, for which there are no Forecasts."""
        self._require_trained()
        from sparda_core.selectors.device.forecast import DeviceForecast

        return DeviceForecast(room)

    def _require_trained(self) -> None:
        if self.lead < 1:
            raise ConfigError(
                f"lead={self.lead} can be predicted but not run: a Forecast looks at least one layer ahead; "
                "use lead=1 or more, or selector 'query'"
            )
