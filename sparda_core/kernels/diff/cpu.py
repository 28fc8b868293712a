"""Selection against slots, compiled: 10 us for a decode step of one row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.kernels.diff.result import Diff, FloatArray, IntArray, Slots
from sparda_core.kernels.jit import kernel
from sparda_core.policy import LAST_SELECTION, SCORE

_UNORDERED, _TOO_MANY = -1, -2

#: Scores of the policies that look at none.
_NO_SCORES = np.empty((0, 0, 0))


def diff_slots(
    slots: Slots, places: IntArray, selection: npt.NDArray[np.int32], opened: IntArray, *, tick: int, policy: str,
    scores: FloatArray | None = None,
) -> Diff:  # fmt: skip
    """The same as `reference.diff_slots`, and it checks the selection before it changes anything.

    Raises ConfigError where a selection is not ascending with -1 last, CapacityError where it has more
    blocks than there are slots; ConfigError where policy "score" is given no scores.
    """
    if policy == SCORE and scores is None:
        raise ConfigError("policy='score' needs the scores of the selection; other policies need none")
    ranks = _NO_SCORES if policy != SCORE else np.ascontiguousarray(scores, np.float64)
    shape = selection.shape
    physical = np.empty(shape, np.int64)
    missing = np.empty((4, selection.size), np.int64)
    counts = np.zeros((3, *shape[:2]), np.int64)
    n = _diff(
        slots.held, slots.used, slots.unread, places, selection, opened, ranks, tick, policy == LAST_SELECTION,
        policy == SCORE, physical, missing, counts,
    )  # fmt: skip
    if n < 0:
        _refuse(n, selection, slots.held.shape[2])
    rows, heads, blocks, targets = missing[:, :n]
    return Diff(
        physical=physical, miss_rows=rows, miss_heads=heads, miss_blocks=blocks, miss_slots=targets,
        misses=counts[0], opened=counts[1], wasted=counts[2],
    )  # fmt: skip


def _refuse(code: int, selection: npt.NDArray[np.int32], slots: int) -> None:
    if code == _UNORDERED:
        raise ConfigError(f"selection must be ascending without repeats, -1 last: {selection.tolist()}")
    most = int((selection >= 0).sum(-1).max())
    raise CapacityError(
        tier="slots", need=most, free=slots, unit="blocks per KV head", hint="lower the budget or raise slots"
    )


@kernel
def _check(selection: npt.NDArray[np.int32], slots: int) -> int:  # pragma: no cover - compiled
    batch, heads, width = selection.shape
    for b in range(batch):
        for h in range(heads):
            chosen = 0
            for w in range(width):
                block = selection[b, h, w]
                if block >= 0:
                    if chosen != w or (w > 0 and block <= selection[b, h, w - 1]):
                        return _UNORDERED
                    chosen += 1
            if chosen > slots:
                return _TOO_MANY
    return 0


@kernel
def _diff(  # noqa: C901, PLR0913, PLR0917 - a compiled loop with flat arguments
    held: IntArray, used: IntArray, unread: npt.NDArray[np.bool_], places: IntArray,
    selection: npt.NDArray[np.int32], opened: IntArray, scores: npt.NDArray[np.float64], tick: int,
    drops: bool, ranked: bool, physical: IntArray, missing: IntArray, counts: IntArray,  # noqa: FBT001
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Fill physical, missing [4, n] and counts [3, B, Hk]; number of misses, or a negative code.

    drops   whether blocks outside the selection go at once
    ranked  whether victims go by `scores`, not by `used`
    """
    batch, heads, width = selection.shape
    slots = held.shape[2]
    code = _check(selection, slots)
    if code < 0:
        return code
    kept, score = np.empty(slots, np.bool_), np.empty(slots)
    n = 0
    for b in range(batch):
        for h in range(heads):
            place = (places[b], h)
            base = (places[b] * heads + h) * slots
            chosen = 0
            while chosen < width and selection[b, h, chosen] >= 0:
                chosen += 1
            physical[b, h, :] = -1
            if chosen == 0:
                continue
            wanted = selection[b, h, :chosen]
            dropped = _keep(held[place], used[place], unread[place], wanted, tick, drops, kept, physical[b, h], base)
            counts[2, b, h] = dropped
            if ranked:
                _score_slots(held[place], scores[b, h], score)
            for w in range(chosen):
                own = wanted[w] == opened[b]
                if own:
                    counts[1, b, h] = 1
                if physical[b, h, w] >= 0:
                    continue
                slot = _victim(held[place], used[place], score, kept, ranked)
                if unread[place][slot]:
                    counts[2, b, h] += 1
                held[place][slot], used[place][slot], unread[place][slot] = wanted[w], tick, not own
                kept[slot] = True
                physical[b, h, w] = base + slot
                if not own:
                    missing[0, n], missing[1, n], missing[2, n], missing[3, n] = b, h, wanted[w], base + slot
                    counts[0, b, h] += 1
                    n += 1
    return n


@kernel
def _keep(  # noqa: PLR0913, PLR0917 - see _diff
    held: IntArray, used: IntArray, unread: npt.NDArray[np.bool_], wanted: npt.NDArray[np.int32],
    tick: int, drops: bool, kept: npt.NDArray[np.bool_], physical: IntArray, base: int,  # noqa: FBT001
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """Find the wanted blocks that have a slot; where others are dropped, empty theirs. Blocks dropped unread."""
    wasted = 0
    for s in range(held.size):
        kept[s] = False
        block = held[s]
        if block < 0:
            continue
        w = np.searchsorted(wanted, block)
        if w < wanted.size and wanted[w] == block:
            kept[s] = True
            used[s] = tick
            physical[w] = base + s
        elif drops:
            wasted += unread[s]
            held[s], unread[s] = -1, False
    return wasted


@kernel
def _score_slots(
    held: IntArray, scores: npt.NDArray[np.float64], out: npt.NDArray[np.float64]
) -> None:  # pragma: no cover - compiled
    for s in range(held.size):
        out[s] = scores[held[s]] if 0 <= held[s] < scores.size else -np.inf
        if np.isnan(out[s]):
            out[s] = -np.inf


@kernel
def _victim(
    held: IntArray, used: IntArray, score: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_],
    ranked: bool,  # noqa: FBT001
) -> int:  # pragma: no cover - compiled  # fmt: skip
    """The lowest empty slot, else the first to go of those that are not kept; ties to the lower slot."""
    best = -1
    for s in range(held.size):
        if held[s] < 0:
            return s
        if kept[s]:
            continue
        if best < 0 or (score[s] < score[best] if ranked else used[s] < used[best]):
            best = s
    return best
