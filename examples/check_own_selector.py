"""A selector of one's own under the laws that hold for all: with a fault that no run of one row shows, and mended."""

from typing import ClassVar

import attrs
import torch
from hypothesis import settings

from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.selectors.scored import ScoredSelector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.testing import LawBroken, check_selector
from sparda_core.work import Work, WorkContext


class NearMiddle(ScoredSelector):
    """Tensor half: the nearer to the middle of what a query can see, the better a block."""

    def __init__(self, *, kv_heads: int, careful: bool) -> None:
        self.kv_heads, self.careful = kv_heads, careful

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, blocks], falling from the middle to both ends."""
        blocks = torch.arange(max(int(view.positions.max()), 0) // view.spec.block + 1)
        # The fault: the middle of the longest row and of the last query, for everybody.
        position = view.positions if self.careful else view.positions.max().expand_as(view.positions)
        middle = position // view.spec.block / 2
        score = -(blocks - middle[..., None]).abs()
        return score[:, None].expand(-1, self.kv_heads, -1, -1)


@attrs.frozen(kw_only=True)
class Middle(Selector):
    """Declaration: it looks at no state, so any lead will do."""

    name: ClassVar[str] = "middle"
    lead: ClassVar[int | None] = None
    careful: bool = True

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """Score all blocks, then take the best that fit."""
        return ("score", "select")

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """One number a block is written and read again."""
        blocks = sum(context.spec.block_count(int(length)) for length in facts.lengths)
        return Work(hbm_bytes=4.0 * blocks * context.shape.kv_heads)

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """No state."""
        return NearMiddle(kv_heads=shape.kv_heads, careful=self.careful)


settings.register_profile("the same search every time", derandomize=True)
settings.load_profile("the same search every time")
try:
    check_selector(Middle(careful=False), laws=["neighbours"], examples=100)
except LawBroken as broken:
    print(f"careless: law {broken.law!r} is broken: {broken.says}")
verdict = check_selector(Middle(), examples=5)
print(f"careful: keeps {len(verdict.held)} laws")
for law, why in verdict.waived.items():
    print(f"  not asked: {law}, {why}")
