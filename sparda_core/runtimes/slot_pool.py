"""SlotPool: the bounded device tier of one offloaded layer, and who sits in which slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparda_core.errors import CapacityError
from sparda_core.kernels.diff.cpu import diff_slots
from sparda_core.kernels.diff.result import Diff, FloatArray, Slots
from sparda_core.policy import LAST_SELECTION, LRU, check_policy
from sparda_core.runtimes.lookup import IntArray, as_int64, find_slots
from sparda_core.runtimes.pages import Blocks, check_sizes
from sparda_core.runtimes.rows import RowTable

__all__ = ["Diff", "SlotPool"]


class SlotPool:
    """`slots` blocks for each row and KV head of one layer. Hk KV heads, S slots, D head dim.

    policy  which blocks stay: "last-selection", "lru" or "score" (sparda_core/policy.py)

    A slot is named by its index in `array`: (place of the row * Hk + head) * S + slot. Slots hold copies:
    the host store is always complete, so emptying slots loses nothing.
    """

    def __init__(
        self, *, kv_heads: int, slots: int, block: int, head_dim: int, dtype: npt.DTypeLike = np.float32,
        policy: str = LAST_SELECTION,
    ) -> None:  # fmt: skip
        check_sizes(kv_heads=kv_heads, slots=slots, block=block, head_dim=head_dim)
        check_policy(policy)
        self.slots, self.kv_heads, self.block, self.policy = slots, kv_heads, block, policy
        self._rows = RowTable()
        self._array: Blocks = np.empty((0, 2, block, head_dim), dtype)
        self._tables = _empty_tables(0, kv_heads, slots)

    @property
    def array(self) -> Blocks:
        """[places * Hk * S, 2, block, D], the blocks; axis 1 is K, V. Replaced when a row is added or slots resized."""
        return self._array

    @property
    def memory(self) -> tuple[Blocks, Slots, int]:
        """What `resize` replaces: blocks, tables and the number of slots; may be put back."""
        return self._array, self._tables, self.slots

    @memory.setter
    def memory(self, held: tuple[Blocks, Slots, int]) -> None:
        self._array, self._tables, self.slots = held

    @property
    def used_bytes(self) -> int:
        """Bytes of slots that belong to rows."""
        return len(self._rows.rows) * self.kv_heads * self.slots * self._block_bytes

    @property
    def rows(self) -> tuple[int, ...]:
        """Row ids, oldest first."""
        return self._rows.rows

    def add(self, row: int) -> None:
        """A new row with empty slots; raises ConfigError where the id is in use, CapacityError without memory."""
        self._rows.refuse_known(row)
        places = self._tables.held.shape[0]
        if self._rows.next_place() >= places:
            self._rebuild(max(1, 2 * places), self.slots)
        self._empty(self._rows.add(row))

    def retire(self, row: int) -> None:
        """Give a row's slots back; raises RowError where there is no such row."""
        self._empty(self._rows.remove(row))

    def forget(self, row: int) -> None:
        """`retire`, where there is such a row, and however little of it there is."""
        if row in self._rows:
            self.retire(row)

    def fork(self, source: int, copy: int) -> None:
        """Add row `copy` with the same blocks in the same slots; a transfer still unread stays the source's."""
        self._rows.place(source)
        self.add(copy)
        origin, place = self._rows.place(source), self._rows.place(copy)
        self._tables.held[place] = self._tables.held[origin]
        self._tables.used[place] = self._tables.used[origin]
        by_row = self._array.reshape(self._tables.held.shape[0], -1)
        by_row[place] = by_row[origin]

    def crop(self, row: int, tokens: int) -> None:
        """Empty the slots of blocks that the first `tokens` tokens do not reach."""
        self.invalidate(row, -(-tokens // self.block))

    def invalidate(self, row: int, from_block: int) -> None:
        """Empty the slots of logical blocks from `from_block` on: their content changed, or went."""
        place = self._rows.place(row)
        gone = self._tables.held[place] >= from_block
        self._tables.held[place][gone] = -1
        self._tables.unread[place][gone] = False

    def diff(
        self, rows: Sequence[int], selection: npt.NDArray[np.int32], opened: IntArray, tick: int,
        scores: FloatArray | None = None,
    ) -> Diff:  # fmt: skip
        """Give every selected block a slot, and list the blocks to be transferred.

        rows       row ids in batch order, none twice
        selection  int32 [B, Hk, W]: ascending logical ids, -1 last; all -1 for a row that sits out
        opened     int64 [B], logical block opened by this step's token; -1 for none
        tick       grows from selection to selection
        scores     [B, Hk, M] that led to the selection; looked at under "score" alone, which needs them
        Raises ConfigError for an unlawful selection or missing scores, and CapacityError for more blocks than
        slots, with nothing changed. Whoever fails to carry out the transfers must `invalidate` the rows.
        """
        return diff_slots(
            self._tables, self._rows.batch(rows), np.ascontiguousarray(selection, np.int32), as_int64(opened),
            tick=tick, policy=self.policy, scores=scores,
        )  # fmt: skip

    def admit(self, row: int, block: int, tick: int) -> Diff:
        """Give one block of a row a slot in every KV head, and drop no other block while there are empty slots.

        For a block that must be resident before a step starts, such as the partly filled last one. Under
        every policy the least recently selected block makes room. B = W = 1 in the result.
        """
        one = np.full((1, self.kv_heads, 1), block, np.int32)
        return diff_slots(self._tables, self._rows.batch((row,)), one, np.array([-1]), tick=tick, policy=LRU)

    def mark_read(self, physical: IntArray) -> None:
        """Say that attention reads these slots (any shape, -1 = none), so that dropping them wastes no transfer."""
        flat = self._tables.unread.reshape(-1)
        flat[physical[physical >= 0]] = False

    def slot_of(self, row: int, blocks: IntArray) -> IntArray:
        """int64 [Hk, n]: index in `array` of each logical block [n] of a row; -1 where it has no slot."""
        found = find_slots(self._tables.held, self._rows.batch((row,)), as_int64(blocks)[None])
        return as_int64(found[0])

    def physical_at(self, rows: Sequence[int], positions: IntArray) -> IntArray:
        """int64 [B, Hk, T]: index in `array` of the block that holds each position [B, T].

        -1 for a negative position, and for a block without a slot.
        """
        return find_slots(self._tables.held, self._rows.batch(rows), as_int64(positions) // self.block)

    def resident(self, row: int) -> IntArray:
        """int64 [Hk, S]: logical block in each slot, -1 = empty; a copy."""
        return np.array(self._tables.held[self._rows.place(row)], np.int64)

    def resize(self, slots: int) -> None:
        """Change the slots per row and KV head; the most recently selected blocks stay, ties to the lower slot.

        Slots get new indices. Raises CapacityError, with nothing changed, without memory.
        """
        check_sizes(slots=slots)
        if slots != self.slots:
            self._rebuild(self._tables.held.shape[0], slots)

    @property
    def _block_bytes(self) -> int:
        return int(np.prod(self._array.shape[1:])) * self._array.itemsize

    def _empty(self, place: int) -> None:
        self._tables.held[place] = -1
        self._tables.unread[place] = False

    def _rebuild(self, places: int, slots: int) -> None:
        """Move to fresh memory for `places` rows of `slots` slots."""
        old, (held_places, heads, held_slots) = self._tables, self._tables.held.shape
        need = places * heads * slots
        try:
            array = np.empty((need, *self._array.shape[1:]), self._array.dtype)
        except (MemoryError, ValueError) as wrong:  # ValueError: more than an array may ever hold
            raise CapacityError(
                tier="slots", need=need * self._block_bytes, free=0, unit="more bytes",
                hint="this machine's memory is full; lower slots or retire rows",
            ) from wrong  # fmt: skip
        tables = _empty_tables(places, heads, slots)
        # blocks first, the last selected before the others; then back into slot order
        order = np.lexsort((-old.used, old.held < 0), axis=-1)[..., : min(slots, held_slots)]
        order.sort(axis=-1)
        width = order.shape[-1]
        for name in ("held", "used", "unread"):
            getattr(tables, name)[:held_places, :, :width] = np.take_along_axis(getattr(old, name), order, -1)
        first = np.arange(held_places * heads).reshape(held_places, heads, 1)
        live = tables.held[:held_places, :, :width] >= 0
        array[(first * slots + np.arange(width))[live]] = self._array[(first * held_slots + order)[live]]
        self._array, self._tables, self.slots = array, tables, slots


def _empty_tables(places: int, heads: int, slots: int) -> Slots:
    shape = (places, heads, slots)
    return Slots(held=np.full(shape, -1, np.int64), used=np.zeros(shape, np.int64), unread=np.zeros(shape, np.bool_))
