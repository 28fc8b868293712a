"""SlotStore: the slots of all offloaded layers, who sits in them, and what each diff leaves.

What the diff kernel does within a step is its own affair; here is what happens to slots between steps. All of it is
torch operations on the current stream: nothing waits, nothing is read by the host.
"""

from __future__ import annotations

import attrs
import torch

from sparda_core.kernels.tables import COUNT, SIGNALS, DeviceDiff, DeviceSlots, LayerLists
from sparda_core.runtimes.gpu.alias import as_words
from sparda_core.runtimes.gpu.sizes import StoreSizes

ALL = slice(None)


class SlotStore:
    """L layers, B places, Hk KV heads, S slots, M blocks that a row may reach, W budget, D head dim.

    array  [L, B * Hk * S, 2, block, D]
    held, used, where  int32 [L, B, Hk, S | S | M], as in DeviceSlots
    counts  int32 [L], lengths of the lists of misses: a step begins by zeroing them
    lists   all layers' lists, for one copy
    """

    def __init__(self, sizes: StoreSizes) -> None:
        self._sizes, lead, width = sizes, sizes.lead, sizes.spec.budget
        each, self.slots, blocks = sizes.places * sizes.kv_heads, sizes.slots, sizes.spec.block_count(sizes.tokens)
        self.array = sizes.empty(sizes.layers, each * sizes.slots, 2, sizes.block, sizes.head_dim)
        self.held = sizes.ints(*lead, sizes.slots, value=-1)
        self.used = sizes.ints(*lead, sizes.slots, value=0)
        self.where = sizes.ints(*lead, blocks, value=-1)
        signals = sizes.ints(sizes.layers, SIGNALS, value=0)
        self.counts = signals[:, COUNT]
        self._physical, self._tail = sizes.ints(*lead, width, value=-1), sizes.ints(*lead, value=-1)
        self._lists = sizes.ints(2, sizes.layers, each * width, value=0)
        self.lists = LayerLists(
            target=self.array, source_ids=self._lists[0], target_ids=self._lists[1], signals=signals
        )
        self.misses, self.opened = sizes.ints(*lead, value=0), sizes.ints(*lead, value=0)
        heads = torch.arange(each, device=sizes.device).view(sizes.places, sizes.kv_heads)
        # index in array[l] of slot 0 of each (place, head)
        self._base = heads * sizes.slots

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots themselves."""
        return self.array.nbytes

    @property
    def table_bytes(self) -> int:
        """Bytes of tables and lists."""
        tables = (self.held, self.used, self.where, self._physical, self._tail, self._lists, self.misses, self.opened)
        return sum(table.nbytes for table in tables)

    def layer(self, at: int) -> DeviceSlots:
        """One layer's slots."""
        return DeviceSlots(array=self.array[at], held=self.held[at], used=self.used[at], where=self.where[at])

    def diff(self, at: int) -> DeviceDiff:
        """Where one layer's diff leaves its result."""
        return DeviceDiff(
            physical=self._physical[at], tail=self._tail[at], source=self._lists[0, at], target=self._lists[1, at],
            count=self.counts[at : at + 1], misses=self.misses[at], opened=self.opened[at],
        )  # fmt: skip

    def empty(self, place: int) -> None:
        """Nothing is held for the row in `place`."""
        self.held[:, place] = -1
        self.used[:, place] = 0
        self.where[:, place] = -1

    def copy(self, source: int, target: int) -> None:
        """`target` holds the same blocks in the same slots as `source`."""
        for table in (self.held, self.used, self.where):
            table[:, target].copy_(table[:, source])
        by_place = self.array.view(self.array.shape[0], self.held.shape[1], -1)
        by_place[:, target].copy_(by_place[:, source])

    def invalidate(self, place: int, from_block: int, *, keep: int = -1) -> None:
        """Empty the slots of logical blocks from `from_block` on, but for block `keep`."""
        held, where = self.held[:, place], self.where[:, place]
        held.masked_fill_((held >= from_block) & (held != keep), -1)
        if keep < from_block:
            where[..., from_block:] = -1
        else:
            where[..., from_block:keep] = -1
            where[..., keep + 1 :] = -1

    def admit(
        self, place: int, block: int, at: int | slice = ALL, *, spare: int = -1
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Give one block of a row a slot in every KV head, as `SlotPool.admit` does: its own where it has one, else
        the lowest empty one, else that of the least recently selected block (ties to the lower slot), but for `spare`.

        Returns int64 [(L,) Hk] where in `array` of its layer the slot lies, and bool: it had it already, so that what
        lies there is the block.
        """
        held, used, where = self.held[at, place], self.used[at, place], self.where[at, place]
        order = torch.where(held >= 0, used.long() + 1, 0)
        if spare >= 0:
            order = torch.where(held == spare, 1 << 40, order)
        # The first of the least: argmin alone promises no order among equals.
        order = order * self.slots + torch.arange(self.slots, device=order.device)
        victim, own = order.argmin(-1), where[..., block].long()
        had = own >= 0
        slot = torch.where(had, own, victim)[..., None]
        old = held.gather(-1, slot).long()
        gone = (old >= 0) & (old != block)
        # What nobody held is written onto the block's own entry, which the last line sets anyway.
        where.scatter_(-1, torch.where(gone, old, block), -1)
        held.scatter_(-1, slot, block)
        used.scatter_(-1, slot, 0)
        where[..., block] = slot[..., 0].int()
        return self._base[place] + slot[..., 0], had

    def resized(self, slots: int, budget: int) -> SlotStore:
        """The same blocks in other memory; the most recently selected stay, ties to the lower slot, in slot order."""
        spec = attrs.evolve(self._sizes.spec, budget=budget)
        new = SlotStore(attrs.evolve(self._sizes, slots=slots, spec=spec))
        width = min(slots, self.slots)
        # Blocks before empty slots, the last used before the others: the order of `SlotPool`, among empty slots too.
        age = torch.where(self.held >= 0, 0, 1 << 40) - self.used.long()
        stay = age.sort(dim=-1, stable=True).indices[..., :width].sort(dim=-1).values
        for table in ("held", "used"):
            getattr(new, table)[..., :width] = getattr(self, table).gather(-1, stay)
        held = new.held[..., :width].long()
        # Empty slots write into a column of their own.
        inverse = self._sizes.ints(*held.shape[:-1], new.where.shape[-1] + 1, value=-1)
        slot = torch.arange(width, device=held.device, dtype=torch.int32).expand(held.shape)
        new.where.copy_(inverse.scatter_(-1, torch.where(held >= 0, held, new.where.shape[-1]), slot)[..., :-1])
        for at in range(self._sizes.layers):
            here = (self._base[..., None] + stay[at]).reshape(-1)
            there = (new._base[..., None] + torch.arange(width, device=held.device)).reshape(-1)
            new.write_blocks(at, there, self.read_blocks(at, here))
        return new

    def slot_of(self, at: int | slice, place: int, block: int) -> torch.Tensor:
        """int64 [(L,) Hk]: where in `array` of its layer a block lies; undefined where it has no slot."""
        return self._base[place] + self.where[at, place, :, block].long()

    def read_blocks(self, at: int | slice, slots: torch.Tensor) -> torch.Tensor:
        """Blocks [n, 2, block, D] in slots int64 [(L,) Hk], in that order."""
        blocks = self._flat().index_select(0, self._across(at, slots))
        return blocks.view(self.array.dtype).view(-1, *self.array.shape[2:])

    def write_blocks(self, at: int | slice, slots: torch.Tensor, blocks: torch.Tensor) -> None:
        """Blocks [n, 2, block, D] into slots int64 [(L,) Hk], in that order."""
        self._flat().index_copy_(0, self._across(at, slots), as_words(blocks.reshape(len(blocks), -1)))

    def _flat(self) -> torch.Tensor:
        return as_words(self.array.view(-1, self.array[0, 0].numel()))

    def _across(self, at: int | slice, slots: torch.Tensor) -> torch.Tensor:
        """int64 [n]: slots of one or all layers as indices over the layers' arrays laid end to end."""
        layers = torch.arange(self.array.shape[0], device=slots.device)[at]
        return (layers.view(-1, *[1] * (slots.ndim - layers.ndim)) * self.array.shape[1] + slots).reshape(-1)

