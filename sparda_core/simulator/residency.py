"""Residency: selections played through slots, as the runtimes' slot pool plays them, for many streams at once.

Only who sits in which slot is kept, no data. tests/simulator/test_locality_residency.py holds it to the real pool.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.policy import LAST_SELECTION, LRU, check_policy
from sparda_core.shapes import BlockSpec, check_integer

Ints = npt.NDArray[np.int64]

#: Policies that a sequence of selections alone can be played under. SCORE is none: it follows a model's scores.
POLICIES = (LAST_SELECTION, LRU)
#: Below every tick: empty slots are filled first.
_EMPTY = 2**40


def check_pool(*, slots: int, policy: str, spec: BlockSpec) -> None:
    """Raise ConfigError where selections cannot be played through these slots, UnknownNameError for another policy.

    That is fewer slots than selected blocks, and "score".
    """
    check_integer("slots", slots, 0)
    if slots < spec.budget:
        raise ConfigError(f"slots={slots} must be >= budget={spec.budget}: every selected block needs a slot")
    check_policy(policy)
    if policy not in POLICIES:
        raise ConfigError(
            f"policy={policy!r} follows the scores of a running model, and neither a locality nor a recording of "
            "selections holds scores: predict from facts that a session recorded under this policy "
            f"(`Combination.predict(..., facts=...)`), or use {' or '.join(map(repr, POLICIES))}"
        )


class Pools:
    """`slots` slots for each of P streams.

    policy  "last-selection": what the current selection leaves out is dropped at once;
            "lru": the least recently selected block goes when a slot is needed, ties to the lower slot
    blocks  logical ids are below this; grow it with `reach`
    """

    def __init__(self, *, streams: int, slots: int, policy: str, blocks: int) -> None:
        self._lru, self._slots = policy == "lru", slots
        self._rows = np.arange(streams)[:, None]
        self._held = np.full((streams, slots), -1, np.int64)
        self._used = np.zeros((streams, slots), np.int64)
        # Slot of each block, -1 for none; the last column belongs to no block, so that id -1 finds it.
        self._slot_of = np.full((streams, blocks + 1), -1, np.int64)
        self._tick = 0

    def reach(self, blocks: int) -> None:
        """Make room for logical ids below `blocks`."""
        more = blocks + 1 - self._slot_of.shape[1]
        if more > 0:
            fresh = np.full((self._slot_of.shape[0], more), -1, np.int64)
            self._slot_of = np.concatenate((self._slot_of, fresh), axis=1)

    @property
    def held(self) -> Ints:
        """int64 [P, slots]: logical block in each slot, -1 = empty; a copy."""
        return np.array(self._held, np.int64)

    def warm(self, selection: npt.NDArray[np.int32], stack: npt.NDArray[np.int32]) -> None:
        """Fill the empty slots with a selection [P, n] and, under lru, with what was dropped last: stack [P, M]."""
        blocks = np.concatenate((selection, stack[:, : self._slots - selection.shape[1]]), axis=1)
        width = blocks.shape[1] if self._lru else selection.shape[1]
        self._held[:, :width] = blocks[:, :width]
        self._used[:, :width] = np.minimum(0, selection.shape[1] - 1 - np.arange(width))
        self._slot_of[self._rows, blocks[:, :width]] = np.arange(width)

    def admit(self, rows: Ints, blocks: Ints) -> None:
        """Give one block [m] of each of these streams [m], whose slots are empty, its slot: the tail before a step."""
        self._held[rows, 0], self._slot_of[rows, blocks] = blocks, 0

    def play(self, selection: npt.NDArray[np.int32], opened: Ints) -> Ints:
        """Give every selected block a slot.

        selection  int32 [P, W]: logical ids, -1 last, none twice; a stream that selects nothing stays as it is
        opened     int64 [P], the block that the step's own token opens; -1 for none
        returns    int64 [P], misses: selected blocks that had no slot, but for the opened one
        """
        self._tick += 1
        valid = selection >= 0
        slot = np.where(valid, self._slot_of[self._rows, selection], -1)
        found = slot >= 0
        rows = np.broadcast_to(self._rows, slot.shape)
        self._used[rows[found], slot[found]] = self._tick
        if not self._lru:
            self._drop_others(valid)
        missing = valid & ~found
        count = missing.sum(1)
        width = int(count.max(initial=0))
        if width:
            victims = self._victims(width)[np.arange(width) < count[:, None]]
            self._fill(rows[missing], victims, selection[missing].astype(np.int64))
        return np.asarray((missing & (selection != opened[:, None])).sum(1), np.int64)

    def _drop_others(self, valid: npt.NDArray[np.bool_]) -> None:
        gone = (self._held >= 0) & (self._used != self._tick) & valid.any(1, keepdims=True)
        rows = np.broadcast_to(self._rows, gone.shape)
        self._slot_of[rows[gone], self._held[gone]] = -1
        self._held[gone] = -1

    def _victims(self, width: int) -> Ints:
        """int64 [P, width]: slots in the order in which they are taken: empty ones, then the least recently used."""
        age = np.where(self._held < 0, -_EMPTY, self._used) * self._slots + np.arange(self._slots)
        if width < self._slots:
            age = np.partition(age, width - 1, axis=1)[:, :width]
        return np.asarray(np.sort(age, axis=1) % self._slots, np.int64)

    def _fill(self, rows: Ints, slots: Ints, blocks: Ints) -> None:
        old = self._held[rows, slots]
        self._slot_of[rows[old >= 0], old[old >= 0]] = -1
        self._held[rows, slots], self._used[rows, slots] = blocks, self._tick
        self._slot_of[rows, blocks] = slots
