"""Selections of a whole batch from a locality: what replaces a selector's choice while its kernels run. Torch-free."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.policy import LAST_SELECTION
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.streams import Streams

Ids = npt.NDArray[np.int32]

#: Different streams; (layer, row, KV head) number i plays stream i mod so many.
STREAMS = 64


@attrs.frozen(kw_only=True, eq=False)
class BatchTrace:
    """Selections of `steps` decode steps, and what the device holds before the first.

    selections  int32 [steps, P, budget], ascending, -1 last
    before      int32 [P, n], the selection that stands before the first step
    stack       int32 [P, m], blocks outside it, the last dropped first
    streams     int64 [L, B, Hk], which of the P streams each (layer, row, KV head) plays
    """

    selections: Ids
    before: Ids
    stack: Ids
    streams: npt.NDArray[np.int64]

    @property
    def history(self) -> int:
        """Steps that count as made before the first: in each but the last, one block of `stack` was selected last."""
        return int(self.stack.shape[1]) + 1

    def held(self, slots: int, policy: str) -> Ids:
        """int32 [P, slots]: blocks on the device before the first step, the last selected first; -1 for none.

        Under "last-selection" that is the last selection alone, as in `simulator.residency.Pools.warm`.
        """
        every = (self.before,) if policy == LAST_SELECTION else (self.before, self.stack)
        known = np.concatenate(every, axis=1)[:, :slots]
        held = np.full((known.shape[0], slots), -1, np.int32)
        held[:, : known.shape[1]] = known
        return held

    def used(self, slots: int) -> Ids:
        """int32 [slots]: the step, none of them negative, in which the block in each slot was selected last.

        One for the whole last selection, `history`; one less for each block of the stack.
        """
        ages = np.maximum(0, np.arange(slots) - self.before.shape[1] + 1)
        return np.asarray(np.maximum(0, self.history - ages), np.int32)


def batch_trace(
    model: LocalityModel, *, shape: ModelShape, spec: BlockSpec, batch: int, context: int, steps: int, seed: int = 0
) -> BatchTrace:  # fmt: skip
    """Draw a trace; every row has `context` tokens before the first step. The same arguments give the same trace.

    A row of at most `budget` blocks selects all of them. Raises ConfigError where rows cannot churn this much.
    """
    model.check(spec, context)
    count = shape.layers * batch * shape.kv_heads
    drawn = Streams(model, spec, streams=min(STREAMS, count), tokens=context, seed=seed)
    before, stack = drawn.selection.astype(np.int32), drawn.stack.copy()
    selections = np.full((steps, before.shape[0], spec.budget), -1, np.int32)
    for step in range(steps):
        chosen = drawn.step()
        selections[step, :, : chosen.shape[1]] = chosen
    number = np.arange(count).reshape(shape.layers, batch, shape.kv_heads)
    return BatchTrace(selections=selections, before=before, stack=stack, streams=number % before.shape[0])
