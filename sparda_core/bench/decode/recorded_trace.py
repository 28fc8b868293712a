"""Selections of a whole batch from a recording of a small model: several recorded streams in one. Torch-free."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from sparda_core.bench.decode.trace import STREAMS, BatchTrace
from sparda_core.errors import ConfigError
from sparda_core.selection import NO_BLOCK
from sparda_core.selectors.recording import Recording
from sparda_core.shapes import BlockSpec, ModelShape

Ids = npt.NDArray[np.int32]


def recorded_trace(
    recording: Recording, *, shape: ModelShape, spec: BlockSpec, batch: int, context: int, steps: int
) -> BatchTrace:
    """A trace of rows of `context` tokens whose free blocks come and go as the recording's.

    A stream is as many recorded ones (layer, row, KV head) side by side as its free blocks hold, each on blocks of its
    own; free blocks that are left over stay (62 hold twelve recorded streams of 5, and 2 that stay). The first half of
    the recording stands for the past, from which the device is filled; then it is played on, backwards from its end and
    forwards again from its beginning as long as steps are wanted: turned round, a step brings in as many blocks.

    Raises ConfigError where rows of the recording do not outgrow their budget, or those asked for are too short.
    """
    free = _free_blocks(recording)
    total, each = free.shape[1], free.shape[2]
    side, width = spec.free // each, int(free.max()) + 1
    first_local = spec.block_count(context) - 1 - spec.local
    if side < 1:
        raise ConfigError(f"budget={spec.budget} leaves {spec.free} free blocks, fewer than the recording's {each}")
    left = spec.free - side * each
    if spec.sink + side * width + left > first_local:
        least = (spec.sink + side * width + left + spec.local) * spec.block + 1
        raise ConfigError(
            f"context={context} is too short for {side} recorded streams of {width} blocks side by side; use >= {least}"
        )
    count = min(STREAMS, shape.layers * batch * shape.kv_heads)
    which = (np.arange(count)[:, None] * side + np.arange(side)) % total
    moved = free[:, which] + np.arange(side)[:, None] * width + spec.sink
    stay = np.broadcast_to(spec.sink + side * width + np.arange(left), (*moved.shape[:2], left))
    own = np.concatenate((moved.reshape(len(free), count, -1), stay), axis=2).astype(np.int32)
    half = len(free) // 2
    played = _order(len(free), half, steps)
    selections = np.stack([_selection(own[at], spec, context + step) for step, at in enumerate(played)])
    before = _selection(own[half - 1], spec, context - 1)
    number = np.arange(shape.layers * batch * shape.kv_heads).reshape(shape.layers, batch, shape.kv_heads)
    return BatchTrace(
        selections=selections, before=before, stack=_stack(own[:half], before, spec.block_count(context)),
        streams=number % count,
    )  # fmt: skip


def _free_blocks(recording: Recording) -> Ids:
    """int32 [steps, streams, free]: what was chosen beyond the forced blocks."""
    spec, ids = recording.spec, recording.selections
    current = (recording.positions // spec.block)[:, None, :, None, None]
    free = (ids != NO_BLOCK) & (ids >= spec.sink) & (ids < current - spec.local)
    if (free.sum(-1) != spec.free).any() or recording.steps < 4:
        raise ConfigError("a row of the recording does not outgrow its budget at every step; record a longer text")
    return np.asarray(ids[free].reshape(recording.steps, -1, spec.free), np.int32)


def _order(recorded: int, first: int, steps: int) -> list[int]:
    """Numbers of recorded steps: from `first` to the last, back to the first of all, and forwards again."""
    there_and_back = itertools.chain(range(recorded), range(recorded - 2, 0, -1))
    return list(itertools.islice(itertools.cycle(there_and_back), first, first + steps))


def _selection(free: Ids, spec: BlockSpec, position: int) -> Ids:
    """int32 [P, budget], ascending: free blocks [P, n] and the forced ones of a query at `position`."""
    forced = np.array(spec.forced_blocks(position), np.int32)
    return np.sort(np.concatenate((np.broadcast_to(forced, (len(free), forced.size)), free), axis=1), axis=1)


def _stack(past: Ids, before: Ids, blocks: int) -> Ids:
    """int32 [P, blocks - budget]: what `before` lacks, the last selected first, then what was never selected."""
    streams = past.shape[1]
    last = np.full((streams, blocks), -1)
    for step, chosen in enumerate(past):
        np.put_along_axis(last, chosen, step, axis=1)
    np.put_along_axis(last, before, len(past), axis=1)
    order = np.argsort(-last, axis=1, kind="stable")
    return order[:, before.shape[1] :].astype(np.int32)
