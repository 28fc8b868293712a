"""Facts of decode steps from a locality: selections are drawn, played through slots, and their misses counted."""

from __future__ import annotations

import math
from functools import lru_cache

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.facts import StepFacts
from sparda_core.shapes import BlockSpec, ModelShape, check_integer
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.residency import Pools, check_pool
from sparda_core.simulator.streams import Streams

Ints = npt.NDArray[np.int64]

#: Streams that are played; the model's (layer, row, KV head) share them.
MOST_STREAMS, FEWEST_STREAMS = 64, 8
#: Bound on streams x blocks of a row, so that a long context takes no longer than a short one.
_MOST_BLOCKS = 2**18
#: Rows are played as if they had no more blocks than this, or than twice the slots; and than that in any case.
_LONG_ROW, _LONGEST_ROW = 2**15, 2**20
#: Steps between the start and the first one that counts, and steps behind a mean.
WARM_UP, MEAN_STEPS = 4, 16
#: Shifts in time before streams repeat.
_SHIFTS = 64
#: Blocks that rows may open while they are played.
_GROWTH = 2**13
#: Most counts (layer, row, KV head, step) of one call: half a gigabyte of them.
_MOST_COUNTS = 10**7


@attrs.frozen(kw_only=True)
class _Load:
    """What misses depend on; the key under which they are kept. The model is without its texts."""

    model: LocalityModel
    spec: BlockSpec
    context: int
    slots: int
    policy: str
    seed: int

    @classmethod
    def of(
        cls, model: LocalityModel, spec: BlockSpec, *, context: int, slots: int, policy: str, seed: int
    ) -> _Load:  # fmt: skip
        """Without the blocks that no draw reaches and the slots that none of them needs."""
        blocks = spec.block_count(context)
        played = min(blocks, max(_LONG_ROW, 2 * slots), _LONGEST_ROW)
        return cls(
            model=model, spec=spec, context=context - (blocks - played) * spec.block,
            slots=min(slots, 2 * played + _GROWTH), policy=policy, seed=seed,
        )  # fmt: skip

    def most_streams(self) -> int:
        most = _MOST_BLOCKS // max(1, self.spec.block_count(self.context))
        return max(FEWEST_STREAMS, min(MOST_STREAMS, most))

    def streams_for(self, count: int) -> int:
        """Streams to share among `count`: the largest divisor, so that sums are even, unless it is small."""
        most = self.most_streams()
        whole = next(n for n in range(min(most, count), 0, -1) if count % n == 0)
        return whole if 2 * whole >= min(most, count) else most


def locality_facts(  # noqa: PLR0913 - one argument a knob
    model: LocalityModel, *, shape: ModelShape, spec: BlockSpec, batch: int, context: int, slots: int | None = None,
    policy: str = "last-selection", resident_layers: int = 0, steps: int = 1, seed: int = 0, steady: bool = False,
) -> tuple[StepFacts, ...]:  # fmt: skip
    """Facts of `steps` decode steps in a row, in a steady state.

    context          tokens in each row's cache after the first of them
    slots            per row and KV head of an offloaded layer; None: as many as the budget
    policy           which blocks stay in them: "last-selection" or "lru"
    resident_layers  first layers, which miss nothing
    steady           every step the same: the mean over streams and steps, spread evenly so that the sum over
                     layers, rows and heads is right to one block; a block opened in the steps counts for none

    At most 64 streams are played, fewer where rows are very long. Without `steady`, (layer, row, head)
    number i has what stream i mod P met, i div P steps later than number i mod P; with more than 64 such
    shifts they repeat. Rows of more than 2 million tokens are played as if they had no more (or twice the
    slots): blocks that old are out of reach of either. The same arguments give the same facts. Nothing is
    late: lateness is what a timeline says.
    Raises ConfigError, UnknownNameError (policy).
    """
    count = spec.budget if slots is None else slots
    _check(shape, batch, context, resident_layers, steps, seed)
    _check_counts(shape, batch, 1 if steady else steps)
    model.check(spec, context)
    check_pool(slots=count, policy=policy, spec=spec)
    numbers = attrs.evolve(model, name="", title="", source="", fitted=None)
    load = _Load.of(numbers, spec, context=context, slots=count, policy=policy, seed=seed)
    size = (shape.layers, batch, shape.kv_heads)
    number = np.arange(math.prod(size))
    if steady:
        # The steps of a mean are longer than the one that it stands for, which may still fit into its budget.
        fits = spec.block_count(context) <= spec.budget
        mean = 0.0 if fits else float(_misses(load, load.most_streams(), MEAN_STEPS).mean())
        edges = np.floor(np.append(number, number.size) * mean + 1e-9)
        shared = np.diff(edges).astype(np.int64).reshape(size)
        return (one_step(spec, count, shared, context, resident_layers, opened=False),) * steps
    streams = load.streams_for(number.size)
    shifts = min(_SHIFTS, -(-number.size // streams))
    played = _misses(load, streams, steps + shifts - 1)
    stream, shift = number % played.shape[1], number // played.shape[1] % shifts
    return tuple(
        one_step(spec, count, played[step + shift, stream].reshape(size), context + step, resident_layers, opened=True)
        for step in range(steps)
    )


def _check(shape: ModelShape, batch: int, context: int, resident_layers: int, steps: int, seed: int) -> None:
    for name, value, least in (
        ("batch", batch, 1), ("context", context, 1), ("steps", steps, 1), ("seed", seed, 0),
        ("resident_layers", resident_layers, 0),
    ):  # fmt: skip
        check_integer(name, value, least)
    if resident_layers > shape.layers:
        raise ConfigError(f"resident_layers={resident_layers} must be <= layers={shape.layers}")


def _check_counts(shape: ModelShape, batch: int, steps: int) -> None:
    most = _MOST_COUNTS // (shape.layers * shape.kv_heads * steps)
    if batch > most:
        raise ConfigError(f"batch={batch} must be <= {most} for {steps} steps of this shape; lower batch or steps")


@lru_cache(maxsize=512)
def _misses(load: _Load, streams: int, steps: int) -> Ints:
    """int64 [steps, streams]: misses of each stream; the first step ends with `context` tokens."""
    before = max(0, load.context - 1 - WARM_UP)
    drawn = Streams(load.model, load.spec, streams=streams, tokens=before, seed=load.seed)
    pools = Pools(
        streams=streams, slots=load.slots, policy=load.policy, blocks=load.spec.block_count(load.context + steps)
    )
    pools.warm(drawn.selection, drawn.stack)
    counted = []
    for _ in range(load.context - before - 1 + steps):
        selection = drawn.step()
        counted.append(pools.play(selection, np.full(streams, drawn.opened)))
    missed = np.stack(counted[-steps:])
    missed.setflags(write=False)
    return missed


def one_step(
    spec: BlockSpec, slots: int, misses: Ints, context: int, resident_layers: int, *, opened: bool
) -> StepFacts:  # fmt: skip
    """Facts of a step of rows of `context` tokens: misses int64 [L, B, Hk], of which resident layers have none.

    opened  whether a step whose token is the first of a block opens it; a mean step opens none
    """
    size = misses.shape
    misses = misses.copy()
    misses[:resident_layers] = 0
    fresh = opened and (context - 1) % spec.block == 0
    none = np.zeros(size, np.int64)
    return StepFacts(
        new_tokens=1, budget=spec.budget, slots=slots if resident_layers < size[0] else 0,
        active=np.ones(size[1]), lengths=np.full(size[1], context),
        selected=np.full(size, min(spec.budget, spec.block_count(context))),
        misses=misses, opened=np.full(size, int(fresh)), late=none, wasted=none,
    )  # fmt: skip
