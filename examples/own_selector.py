"""A selection method of one's own, declaration and tensors, run under a built-in runtime."""

from typing import ClassVar

import attrs
import torch

from sparda_core.compose import compose
from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.models.tiny import tiny_model
from sparda_core.plan import Op, Phase
from sparda_core.selector import BoundSelector, Selector
from sparda_core.selectors.scored import ScoredSelector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.work import Work, WorkContext


class Oldest(ScoredSelector):
    """Tensor half: the older a block, the better."""

    def scores(self, view: LayerView) -> torch.Tensor:
        """[B, Hk, T, blocks], falling from the first block on."""
        blocks = int(view.positions.max()) // view.spec.block + 1
        rows, queries = view.positions.shape
        return -torch.arange(blocks, dtype=torch.float32).expand(rows, view.entries.buffer.shape[1], queries, blocks)


@attrs.frozen(kw_only=True)
class OldestFirst(Selector):
    """Declaration: it looks at nothing, so any lead will do."""

    name: ClassVar[str] = "oldest"
    lead: ClassVar[int | None] = None

    def operations(self, target: int, phase: Phase, lead: int) -> tuple[str, ...]:
        """Score all blocks, then take the best that fit."""
        return ("score", "select")

    def work(self, op: Op, facts: StepFacts, context: WorkContext) -> Work:
        """One number a block is written and read again; the ids are small."""
        blocks = facts.lengths.sum() / context.spec.block * context.shape.kv_heads
        return Work(hbm_bytes=4.0 * float(blocks))

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """No state."""
        return Oldest()


model = tiny_model(seed=3)
spec = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
pair = compose(model, OldestFirst(), "offload-prefetch", spec=spec)
with pair.open() as session:
    session.on_selection = lambda view: print(f"layer {view.layer}: {view.selection[0, 0, 0].tolist()}")
    row = session.add()
    session.prefill(row, [i % 97 for i in range(150)])
    facts = session.decode({row: 7}).facts
print("moved per layer:", facts.misses.sum((1, 2)).tolist())
