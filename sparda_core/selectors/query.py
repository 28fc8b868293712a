"""query: blocks chosen by the layer's own query, as InfLLM-V2 does."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector, DeviceSizes
from sparda_core.selectors.declaration import ScoringDeclaration, layers_alike, own_query_bytes
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Query(ScoringDeclaration):
    """Per head, a softmax over the visible entries; summed over the group, max-pooled to blocks.

    Known only when the layer itself runs (lead 0): its transfers cannot hide behind another layer.
    Source: InfLLM-V2's first stage, as SparDA uses it for its base (SparDA, section 2).
    """

    name: ClassVar[str] = "query"
    lead = 0

    @layers_alike
    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """Hq heads; in decode one pass over the entries, else two."""
        from sparda_core.kernels.score_query.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.query import BoundQuery

        return BoundQuery()

    def device_bytes(self, sizes: DeviceSizes) -> int:
        """One layer's logits, for every row at its longest."""
        return own_query_bytes(sizes)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half, which keeps room for one layer's logits."""
        from sparda_core.selectors.device.query import DeviceQuery

        return DeviceQuery(room)
