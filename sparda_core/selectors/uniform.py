"""random: every free block as likely as any other. The chance level of every recall figure."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.plan import Op
from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import ScoringDeclaration
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


@attrs.frozen(kw_only=True)
class Uniform(ScoringDeclaration):
    """Scores are a pure function of (seed, position of the query, layer, KV head, block).

    So neither batch neighbours nor the chunking of a prompt change them, and two rows at the same
    position draw the same blocks. A new position draws afresh: churn is that of chance.
    """

    name: ClassVar[str] = "random"
    lead = None

    seed: int = attrs.field(default=0)

    @seed.validator
    def _in_range(self, attribute: attrs.Attribute[int], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise ConfigError(f"seed={value!r} must be an integer in [0, 2**63)")

    def score_work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """One hash and one float32 for every block of every active row and KV head."""
        from sparda_core.kernels.score_uniform.work import work

        return work(op, facts, context)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.uniform import BoundUniform

        return BoundUniform(kv_heads=shape.kv_heads, seed=self.seed)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state."""
        from sparda_core.selectors.device.uniform import DeviceUniform

        return DeviceUniform(room, seed=self.seed)
