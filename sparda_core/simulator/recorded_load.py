"""Facts of another load from a recording: shares of a selection that the recording misses, taken over."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality_facts import one_step
from sparda_core.simulator.trace_facts import Recorded, recorded_facts

Shares = npt.NDArray[np.float64]

#: Rows that play one recorded row start so many steps apart: a prime, so that they do not meet.
_APART = 37


@attrs.frozen(kw_only=True, eq=False)
class RecordedShares:
    """Misses / selected blocks of the second half of a recording, slots empty before the first, by step and stream.

    shares  [steps, L, B, Hk]
    """

    shares: Shares

    @property
    def mean(self) -> float:
        """Over everything."""
        return float(self.shares.mean())


def recorded_shares(recording: Recorded, *, slots: int, budget: int, policy: str) -> RecordedShares:
    """What the recording misses with as many selections of slots as `slots` are of `budget`.

    Raises ConfigError, UnknownNameError as `recorded_facts` does, and ConfigError where no row outgrows its budget.
    """
    spec = recording.spec
    if not (recording.positions // spec.block + 1 > spec.budget).any():
        raise ConfigError(
            f"no row of the recording outgrows its budget={spec.budget}: nothing was chosen; record a longer text or a "
            "smaller budget"
        )
    own = round(slots * spec.budget / budget)
    facts = recorded_facts(recording, slots=own, policy=policy, skip=recording.selections.shape[0] // 2)
    counts = [np.stack([getattr(step, name) for step in facts]) for name in ("misses", "selected")]
    return RecordedShares(shares=counts[0] / np.maximum(counts[1], 1))


def load_facts(
    recorded: RecordedShares, *, shape: ModelShape, spec: BlockSpec, batch: int, context: int, slots: int,
    resident_layers: int = 0, steps: int | None = None,
) -> tuple[StepFacts, ...]:  # fmt: skip
    """Facts of decode steps of another shape, cut and context that miss what the recording misses.

    What is taken over is a share: of a selection of `spec.budget` blocks as many are missed as of the recording's, with
    slots counted in selections. Layers are stretched to the shape's, end on end. Rows and KV heads play the recorded
    (row, KV head) pairs in turn, from layer to layer further on, and those that repeat one do so 37 steps later. No
    more than `spec.free` blocks of a selection are missed.

    steps  None: one step, each layer's mean, spread so that any run of layers, rows and heads is right to one block;
           else so many steps, one after the other, from the recording's middle on, begun again at its end
    """
    source = recorded.shares
    # First on first and last on last: the first layer's misses are like no other's.
    layer = np.rint(np.linspace(0, source.shape[1] - 1, shape.layers)).astype(np.int64)[:, None, None]
    size = (shape.layers, batch, shape.kv_heads)
    number, pairs = np.arange(np.prod(size)).reshape(size), source.shape[2] * source.shape[3]
    row, head = np.divmod(number % pairs, source.shape[3])
    turn = np.arange(batch * shape.kv_heads).reshape(1, *size[1:]) // pairs
    made = []
    for step in range(1 if steps is None else steps):
        if steps is None:
            share = np.broadcast_to(source.mean((0, 2, 3))[layer], size)
        else:
            share = source[(step + _APART * turn) % source.shape[0], layer, row, head]
        misses = np.minimum(_whole(share * spec.budget), spec.free)
        made.append(one_step(spec, slots, misses, context + step, resident_layers, opened=steps is not None))
    return tuple(made)


def _whole(counts: Shares) -> npt.NDArray[np.int64]:
    """Whole blocks; fractions are carried on from stream to stream."""
    edges = np.floor(np.concatenate(([0.0], np.cumsum(counts.ravel()))) + 1e-6)
    return np.diff(edges).astype(np.int64).reshape(counts.shape)
