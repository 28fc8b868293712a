"""The two tiers of a session, and the life of a row across everything that keeps something for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparda_core.kernels.gather.cpu import gather_blocks
from sparda_core.runtimes.bias_store import BiasStore
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.entry_store import EntryStore
from sparda_core.runtimes.slot_pool import SlotPool
from sparda_core.shapes import BlockSpec, ModelShape

Ints = npt.NDArray[np.int64]


class _Rows(Protocol):
    """Whatever keeps something for each row."""

    def add(self, row: int) -> None: ...
    def forget(self, row: int) -> None: ...
    def fork(self, source: int, copy: int) -> None: ...


class Tiers:
    """Device store of the resident layers; host store and slot pools of the others; entries of all, and token biases
    where the model has them.

    The host store holds every token of its layers, so a pool may be emptied at any time. One rule makes
    appending safe beside a transfer: the partly filled tail block of a row always has its slot.
    """

    def __init__(
        self, *, shape: ModelShape, spec: BlockSpec, resident: int, slots: int, policy: str,
        dtype: npt.DTypeLike, page_blocks: int, host_limit_bytes: int | None,
    ) -> None:  # fmt: skip
        self.shape, self.spec, self.resident = shape, spec, resident
        sizes: dict[str, Any] = {
            "kv_heads": shape.kv_heads, "block": spec.block, "head_dim": shape.head_dim, "dtype": dtype,
        }  # fmt: skip
        offloaded = range(resident, shape.layers)
        self.device = BlockStore(layers=range(resident), page_blocks=page_blocks, tier="device", **sizes)
        self.host = BlockStore(
            layers=offloaded, page_blocks=page_blocks, limit_bytes=host_limit_bytes, tier="host", **sizes
        )
        self.pools = {layer: SlotPool(slots=slots, policy=policy, **sizes) for layer in offloaded}
        self.entries = EntryStore(
            layers=range(shape.layers), kv_heads=shape.kv_heads, head_dim=shape.head_dim, dtype=dtype, spec=spec
        )
        self.bias = None
        if shape.token_bias:
            self.bias = BiasStore(layers=shape.layers, kv_heads=shape.kv_heads, dtype=dtype, spec=spec)

    def _parts(self) -> tuple[_Rows, ...]:
        biases = () if self.bias is None else (self.bias,)
        return (self.device, self.host, self.entries, *biases, *self.pools.values())

    def store(self, layer: int) -> BlockStore:
        """Where every token of a layer is."""
        return self.device if layer < self.resident else self.host

    def add(self, row: int) -> None:
        """Make room for an empty row. Where that is interrupted, `forget` takes back what there is of it."""
        for part in self._parts():
            part.add(row)

    def forget(self, row: int) -> None:
        """Give a row's memory back, wherever there is any; may be called again after it was interrupted."""
        for part in self._parts():
            part.forget(row)

    def fork(self, source: int, copy: int) -> None:
        """Row `copy` starts as a copy of `source`. Interrupted, it is taken back as one that was added."""
        for part in self._parts():
            part.fork(source, copy)

    def crop(self, row: int, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        for store in (self.device, self.host):
            store.crop(row, tokens)
        self.entries.crop(row, tokens)
        if self.bias is not None:
            self.bias.crop(row, tokens)
        self.refresh(row, tokens, stale_from=tokens)

    def refresh(self, row: int, tokens: int, *, stale_from: int) -> None:
        """After tokens from `stale_from` on changed behind the pools' back: drop those blocks, slot the tail."""
        for pool in self.pools.values():
            pool.invalidate(row, stale_from // self.spec.block)
        self._slot_tails(row, tokens)

    def _slot_tails(self, row: int, tokens: int) -> None:
        if tokens % self.spec.block:
            for layer in self.pools:
                self._slot_tail(layer, row, tokens // self.spec.block)

    def _slot_tail(self, layer: int, row: int, block: int) -> None:
        pool = self.pools[layer]
        diff = pool.admit(row, block, tick=0)
        if diff.miss_slots.size:
            source = self.host.physical(layer, row)[diff.miss_heads, diff.miss_blocks]
            gather_blocks(self.host.array, pool.array, source, diff.miss_slots, 0, source.size)
            pool.mark_read(diff.physical)

    def recount(self) -> None:
        """Free what was taken for rows and never became theirs, after work that was interrupted."""
        for store in (self.device, self.host):
            store.recount()

    def reserve(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Pages for rows (row, tokens) to grow to; raises CapacityError before anything is written."""
        for row, tokens in lengths:
            self.device.reserve(row, tokens)
            self.host.reserve(row, tokens)

    def commit(self, row: int, tokens: int) -> None:
        """Say that the row now holds `tokens` tokens, all of them written."""
        self.device.set_length(row, tokens)
        self.host.set_length(row, tokens)

    def resize(self, slots: int) -> None:
        """Change the slots of all pools or none; resident blocks stay while there is room, a row's tail in any case."""
        before = [pool.memory for pool in self.pools.values()]
        try:
            for pool in self.pools.values():
                pool.resize(slots)
            for row in self.host.rows if self.pools else ():
                self._slot_tails(row, self.host.length(row))
        except BaseException:
            for pool, held in zip(self.pools.values(), before, strict=True):
                pool.memory = held
            raise

    @property
    def used_bytes(self) -> dict[str, int]:
        """Bytes in use by tier."""
        pools = sum(pool.array.nbytes for pool in self.pools.values())
        return {"host": self.host.used_bytes, "device": self.device.used_bytes + pools}
