"""HostTier: offloaded layers. Every block in pinned host memory, some of them in slots on the device."""

from __future__ import annotations

import numpy as np
import torch

from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.page_store import ALL, At, PageStore
from sparda_core.runtimes.gpu.pinning import Progress, pinned_empty
from sparda_core.runtimes.gpu.sizes import StoreSizes
from sparda_core.runtimes.gpu.slot_store import SlotStore


class HostTier:
    """Pages and slots of the offloaded layers, kept in step. See `GpuTiers` for the meaning of its methods.

    The host store holds every token, with one exception: in float8 a block goes there when it is full, so the partly
    filled last block of a row lies in its slots alone, and they are never given up.
    """

    def __init__(
        self, plan: CapacityPlan, *, dtype: torch.dtype, device: torch.device, pinning: str | None,
        progress: Progress | None, memory: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self._block, self._float8 = plan.spec.block, plan.float8
        # Tokens written of each (place, layer): in mid-prefill the layers differ.
        self._ends = np.zeros((plan.places, plan.offloaded_layers), np.int64)
        # Partly filled last block of each row as it was before the work under way, which may have to be undone.
        self._before = [-1] * plan.places
        sizes = StoreSizes.of(plan, plan.offloaded_layers, dtype, device)
        # Slots first: they fail in an instant where memory is short, pinning takes a second for every 2 GiB.
        self.slots = SlotStore(sizes)
        block = plan.host_bytes // plan.host_blocks
        if memory is None:
            memory = pinned_empty(plan.host_bytes, method=pinning, progress=progress, unit=block)
        self.pages = PageStore(sizes, memory, tier="host", float8=plan.float8)

    def allocated(self) -> dict[str, int]:
        """Bytes by the names of a plan's parts."""
        scales = 0 if self.pages.scales is None else self.pages.scales.nbytes
        return {"slots": self.slots.used_bytes, "scales": scales, "host": self.pages.memory_bytes}

    @property
    def table_bytes(self) -> int:
        """Bytes of tables and lists."""
        return self.pages.table.nbytes + self.slots.table_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of host pages in use."""
        return self.pages.used_bytes

    # Rows -----------------------------------------------------------------------------------------

    def add(self, place: int) -> None:
        """An empty row."""
        self.pages.add(place)
        self._before[place] = -1
        self.slots.empty(place)
        self._ends[place] = 0

    def retire(self, place: int) -> None:
        """Give pages and slots back."""
        self.pages.retire(place)
        self.slots.empty(place)
        self._ends[place] = 0

    def fork(self, source: int, copy: int) -> None:
        """`copy` starts as `source`: shared pages, slots of its own with the same content."""
        self.pages.fork(source, copy)
        self.slots.copy(source, copy)
        self._ends[copy], self._before[copy] = self._ends[source], self._before[source]

    def move(self, source: int, target: int) -> None:
        """The row of `source` from now on lies in `target`."""
        self.pages.move(source, target)
        self.slots.copy(source, target)
        self.slots.empty(source)
        self._ends[target], self._ends[source] = self._ends[source], 0
        self._before[target] = self._before[source]

    def crop(self, place: int, tokens: int) -> None:
        """Drop pages beyond the first `tokens` tokens; `refresh` looks after the slots."""
        self.pages.crop(place, tokens)

    def reserve(self, place: int, tokens: int) -> None:
        """Pages up to `tokens` tokens."""
        self.pages.reserve(place, tokens)

    def commit(self, place: int, tokens: int) -> None:
        """The first `tokens` tokens are written."""
        self.pages.commit(place, tokens)
        self._ends[place] = tokens
        self._before[place] = tokens // self._block if tokens % self._block else -1

    def refresh(self, place: int, tokens: int, *, stale_from: int) -> None:
        """Drop blocks from that of `stale_from` on, and give the partly filled last block of `tokens` its slot."""
        tail = tokens // self._block if tokens % self._block else -1
        self.slots.invalidate(place, stale_from // self._block, keep=tail if self._float8 else -1)
        self._ends[place] = tokens
        if tail >= 0:
            slots, had = self.slots.admit(place, tail)
            self._fill(ALL, place, tail, slots, had)

    def _fill(self, at: At, place: int, block: int, slots: torch.Tensor, had: torch.Tensor) -> None:
        """The block's content from the host into its slots, but for those that had it."""
        here = torch.full((1,), block, device=slots.device)
        fresh = self.pages.read_blocks(self.pages.block_ids(at, place, here).reshape(-1))
        kept = self.slots.read_blocks(at, slots)
        self.slots.write_blocks(at, slots, torch.where(had.reshape(-1, 1, 1, 1), kept, fresh))

    def resize(self, slots: int, budget: int) -> None:
        """Other slots and another budget; the last block of each row stays, whatever else must go."""
        tails = [
            (place, int(end) // self._block) for place, end in enumerate(self._ends[:, 0]) if end % self._block
        ]
        saved = [self.slots.read_blocks(ALL, self.slots.slot_of(ALL, *tail)) for tail in tails]
        self.slots = self.slots.resized(slots, budget)
        for tail, blocks in zip(tails, saved, strict=True):
            self.slots.write_blocks(ALL, self.slots.admit(*tail)[0], blocks)

    # Content --------------------------------------------------------------------------------------

    def write(self, at: int, place: int, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """K and V [Hk, n, D] of tokens start .. of one layer to the host."""
        if not self._float8:
            self.pages.write(at, place, keys, values, start)
        elif keys.shape[1]:
            self._write_float8(at, place, torch.stack([keys, values], 1), start)

    def _write_float8(self, at: int, place: int, tokens: torch.Tensor, start: int) -> None:
        """[Hk, 2, n, D]: full blocks to the host, what is left of the last one into its slots."""
        from sparda_core.kernels.quantise.reference import quantise_blocks

        size, heads = self._block, tokens.shape[0]
        stop, first = start + tokens.shape[2], start // size
        blocks = tokens.new_zeros(heads, 2, (-(-stop // size) - first) * size, tokens.shape[3], dtype=self.pages.dtype)
        if start % size:
            older = self.slots.read_blocks(at, self.slots.slot_of(at, place, first))
            blocks[:, :, : start % size] = older[:, :, : start % size]
        blocks[:, :, start - first * size : stop - first * size] = tokens
        blocks = blocks.view(heads, 2, -1, size, tokens.shape[3]).movedim(2, 1)  # [Hk, blocks, 2, block, D]
        full = stop // size - first
        if full:
            ids = self.pages.block_ids(at, place, torch.arange(first, first + full, device=tokens.device))
            self.pages.write_blocks(ids.reshape(-1), *quantise_blocks(blocks[:, :full].flatten(0, 1)))
        if stop % size:
            slots, _ = self.slots.admit(place, stop // size, at, spare=self._before[place])
            self.slots.write_blocks(at, slots, blocks[:, full])
        self._ends[place, at] = stop

    def read(self, at: At, place: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [(L,) Hk, stop - start, D]; in float8 those of the last block come from its slots."""
        keys, values = self.pages.read(at, place, start, stop)
        end = int(self._ends[place, at].max())
        tail = end // self._block
        if self._float8 and end % self._block and stop > tail * self._block:
            blocks = self.slots.read_blocks(at, self.slots.slot_of(at, place, tail))
            blocks = blocks.view(*keys.shape[:-2], *blocks.shape[1:])
            low = max(start, tail * self._block)
            part = slice(low - tail * self._block, stop - tail * self._block)
            for side, tokens in enumerate((keys, values)):
                tokens[..., low - start :, :] = blocks[..., side, part, :]
        return keys, values
