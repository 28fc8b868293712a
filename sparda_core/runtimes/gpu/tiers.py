"""GpuTiers: the memory of a GPU session, and the life of a row in it, by place.

Sizes are fixed when it opens, so that captured steps stay valid. Between steps everything happens by operations on
the current stream, which must be the one that steps are launched on: nothing waits for the device, and a step that is
still under way sees everything as it was when it was launched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import attrs
import torch

from sparda_core.device_view import Choice
from sparda_core.errors import CapacityError, ConfigError, RowError
from sparda_core.runtimes.gpu.bias_buffers import BiasBuffers
from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.entry_buffers import EntryBuffers
from sparda_core.runtimes.gpu.host_tier import HostTier
from sparda_core.runtimes.gpu.page_store import ALL, PageStore
from sparda_core.runtimes.gpu.pinning import Progress
from sparda_core.runtimes.gpu.rows import new_rows
from sparda_core.runtimes.gpu.sizes import StoreSizes
from sparda_core.runtimes.gpu.tier import LayerTier


class GpuTiers:
    """Everything for the places and tokens of a plan. Rows are named by place; batch order is the session's affair.

    rows    position, token, tick and seed by place; made here, written by the session
    layers  by layer, what its operations work on
    counts  int32 [offloaded layers], lengths of the lists of misses, for `begin_step`
    lists   the lists of all offloaded layers; None without any
    """

    def __init__(
        self, plan: CapacityPlan, *, dtype: torch.dtype, device: torch.device, pinning: str | None = None,
        progress: Progress | None = None, host_memory: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Take all memory. `pinning`, `progress`: see `pinned_empty`. Raises CapacityError where memory is short.

        host_memory  uint8, pinned memory of the caller's to use for the host store; None: pin as much as it needs
        """
        if dtype.itemsize != plan.kv_bytes:
            raise ConfigError(f"dtype={dtype} takes {dtype.itemsize} bytes, the plan counts kv_bytes={plan.kv_bytes}")
        self.plan, self.shape, self.spec, self.device = plan, plan.shape, plan.spec, device
        self.resident = plan.resident_layers
        self._lengths: dict[int, int] = {}
        self._dtype = dtype
        with short_of_memory(plan):
            self._open(pinning, progress, host_memory)

    def _open(self, pinning: str | None, progress: Progress | None, host_memory: torch.Tensor | None) -> None:
        plan, dtype, device = self.plan, self._dtype, self.device
        self.rows = new_rows(plan.places, device)
        self.entries = EntryBuffers(StoreSizes.of(plan, plan.shape.layers, dtype, device))
        self.bias = None
        if plan.shape.token_bias:
            self.bias = BiasBuffers(StoreSizes.of(plan, plan.shape.layers, dtype, device))
        self.pages: PageStore | None = None
        if plan.resident_layers:
            memory = torch.empty(plan.device_parts()["resident pages"], dtype=torch.uint8, device=device)
            self.pages = PageStore(StoreSizes.of(plan, plan.resident_layers, dtype, device), memory, tier="device")
        self.host = None
        if plan.offloaded_layers:
            lent = None if host_memory is None else _part(host_memory, plan)
            self.host = HostTier(plan, dtype=dtype, device=device, pinning=pinning, progress=progress, memory=lent)
        self._lay_out()

    def _lay_out(self) -> None:
        sizes = StoreSizes.of(self.plan, self.plan.shape.layers, self._dtype, self.device)
        # One layer is scored at a time, so all share one buffer, which then stays in the device's cache.
        self._scores = torch.full((*sizes.lead[1:], self.plan.blocks), float("-inf"), device=self.device)
        self._blocks = sizes.ints(*sizes.lead, self.spec.budget, value=-1)
        self._counts = sizes.ints(*sizes.lead, value=0)
        self.layers = tuple(self._layer(layer) for layer in range(sizes.layers))
        self.counts = self.host.slots.counts if self.host is not None else sizes.ints(0, value=0)
        self.lists = None if self.host is None else self.host.slots.lists

    def _layer(self, layer: int) -> LayerTier:
        at, host = layer - self.resident, self.host
        offloaded = host is not None and at >= 0
        return LayerTier(
            entries=self.entries.entries[layer], ring=self.entries.ring[layer],
            device=None if offloaded or self.pages is None else self.pages.paged(layer),
            slots=host.slots.layer(at) if host is not None and offloaded else None,
            host=host.pages.paged(at) if host is not None and offloaded else None,
            diff=host.slots.diff(at) if host is not None and offloaded else None,
            scores=self._scores, choice=Choice(blocks=self._blocks[layer], counts=self._counts[layer]),
            bias=None if self.bias is None else self.bias.tokens[layer],
            means=None if self.bias is None else self.bias.means[layer],
        )  # fmt: skip

    def allocated(self) -> dict[str, int]:
        """Bytes taken, by the names of the plan's parts; "host" is pinned memory."""
        state = self._blocks.nbytes + self._counts.nbytes + self._scores.nbytes
        taken = {"entries": self.entries.used_bytes, "slots": 0, "resident pages": 0, "scales": 0, "host": 0}
        taken["token bias"] = 0 if self.bias is None else self.bias.used_bytes
        if self.pages is not None:
            taken["resident pages"], state = self.pages.memory_bytes, state + self.pages.table.nbytes
        if self.host is not None:
            taken |= self.host.allocated()
            state += self.host.table_bytes
        return {**taken, "tables and lists": state}

    # Rows -----------------------------------------------------------------------------------------

    def length(self, place: int) -> int:
        """Tokens of the row in a place; raises RowError where there is none."""
        if place not in self._lengths:
            raise RowError(f"place={place} has no row; places in use: {sorted(self._lengths)}")
        return self._lengths[place]

    def holds(self, place: int) -> bool:
        """Whether a row lies in a place."""
        return place in self._lengths

    def add(self, place: int) -> None:
        """An empty row in a free place; where that is interrupted, the place is free again."""
        self._take(place)
        try:
            for part in self._stores():
                part.add(place)
            self._sit_out(place)
        except BaseException:
            self._vacate(place)
            raise
        self._lengths[place] = 0

    def retire(self, place: int) -> None:
        """Give a row's pages and slots back; may be done again where it was interrupted."""
        self.length(place)
        self._vacate(place)
        del self._lengths[place]

    def _vacate(self, place: int) -> None:
        for part in self._stores():
            part.retire(place)
        self._sit_out(place)

    def fork(self, source: int, copy: int) -> None:
        """The row in the free place `copy` starts as a copy of that in `source`; they share pages until one writes."""
        tokens = self.length(source)
        self._take(copy)
        try:
            for part in self._stores():
                part.fork(source, copy)
            self._copy(source, copy, tokens)
            self._sit_out(copy)
        except BaseException:
            self._vacate(copy)
            raise
        self._lengths[copy] = tokens

    def move(self, source: int, target: int) -> None:
        """The row of `source` from now on lies in the free place `target`, with its token and seed; may be done again
        where it was interrupted.
        """
        tokens = self.length(source)
        self._take(target)
        for part in self._stores():
            part.move(source, target)
        self._copy(source, target, tokens)
        for state in (self.rows.position, self.rows.token, self.rows.seed):
            state[target : target + 1].copy_(state[source : source + 1])
        self._sit_out(source)
        # No call in between: the row is in one place.
        self._lengths[target] = tokens
        del self._lengths[source]

    def _copy(self, source: int, target: int, tokens: int) -> None:
        self.entries.copy(source, target, tokens)
        if self.bias is not None:
            self.bias.copy(source, target, tokens)

    def crop(self, place: int, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        length = self.length(place)
        if not 0 <= tokens <= length:
            raise ConfigError(f"tokens={tokens} of place {place} must be between 0 and its length {length}")
        # First: a crop that is cut short is done again, and by then some parts may be that short.
        self._lengths[place] = tokens
        for part in self._stores():
            part.crop(place, tokens)
        self.refresh(place, tokens, stale_from=tokens)
        self._restore_keys(place, tokens)

    def refresh(self, place: int, tokens: int, *, stale_from: int) -> None:
        """After tokens from `stale_from` on changed behind the slots' back, or a step failed: drop those blocks, and
        give the partly filled last one its slot.
        """
        if self.host is not None:
            self.host.refresh(place, tokens, stale_from=stale_from)

    def _restore_keys(self, place: int, tokens: int) -> None:
        """The newest keys of a row that became shorter."""
        first = max(0, tokens - self.spec.window)
        if self.pages is not None:
            keys, _ = self.pages.read(ALL, place, first, tokens)
            self.entries.keep(slice(None, self.resident), place, keys, tokens)
        if self.host is not None:
            keys, _ = self.host.read(ALL, place, first, tokens)
            self.entries.keep(slice(self.resident, None), place, keys, tokens)

    def resize(self, plan: CapacityPlan) -> None:
        """Take over the budget and slots of `plan`, all else being equal. Captured steps must be captured anew.

        Raises CapacityError, with nothing changed, where memory is short: old and new slots are there for a moment.
        """
        if attrs.evolve(self.plan, slots=plan.slots, spec=plan.spec) != plan or plan.spec.block != self.spec.block:
            raise ConfigError("only slots and budget can change in an open session; open another one")
        with short_of_memory(plan):
            if self.host is not None:
                self.host.resize(plan.slots, plan.spec.budget)
            self.plan, self.spec = plan, plan.spec
            self._lay_out()

    def reserve(self, lengths: Mapping[int, int]) -> None:
        """Pages for rows (place -> tokens) to grow to; raises CapacityError before anything is written."""
        for place, tokens in lengths.items():
            self.length(place)
            if tokens > self.plan.tokens:
                raise ConfigError(f"tokens={tokens} of place {place} must be <= {self.plan.tokens}, the most of a row")
            for part in self._stores():
                part.reserve(place, tokens)

    def commit(self, lengths: Mapping[int, int]) -> None:
        """Say that rows (place -> tokens) now hold so many tokens, all of them written. Only these outlive a fork."""
        for place, tokens in lengths.items():
            self.length(place)
            for part in self._stores():
                part.commit(place, tokens)
            self._lengths[place] = tokens

    def _stores(self) -> tuple[PageStore | HostTier, ...]:
        return tuple(part for part in (self.pages, self.host) if part is not None)

    def _take(self, place: int) -> None:
        if not 0 <= place < self.plan.places or place in self._lengths:
            raise ConfigError(f"place={place} must be a free one of {self.plan.places}; taken: {sorted(self._lengths)}")

    def _sit_out(self, place: int) -> None:
        self.rows.position[place : place + 1].fill_(-1)

    # Content --------------------------------------------------------------------------------------

    def load(
        self, place: int, layer: int, keys: torch.Tensor, values: torch.Tensor, start: int,
        bias: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write K and V [Hk, n, D], on the device, of the tokens from `start` on, and the entries they complete; their
        biases [Hk, n] as well, where the model has them.

        The tokens must be reserved. When all layers are loaded: `refresh(place, length, stale_from=start)`, `commit`.
        """
        if layer < self.resident:
            assert self.pages is not None
            self.pages.write(layer, place, keys, values, start)
        else:
            assert self.host is not None
            self.host.write(layer - self.resident, place, keys, values, start)
        self.entries.extend(layer, place, keys, start)
        if self.bias is not None:
            assert bias is not None, "a model with a token bias gives one for every token"
            self.bias.extend(layer, place, bias, start)

    def read(self, place: int, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [Hk, stop - start, D] of some tokens, on the device; also of tokens not yet committed."""
        if layer < self.resident:
            assert self.pages is not None
            return self.pages.read(layer, place, start, stop)
        assert self.host is not None
        return self.host.read(layer - self.resident, place, start, stop)

    def read_bias(self, place: int, layer: int, stop: int) -> torch.Tensor | None:
        """Biases [Hk, stop] of a row's first tokens, a view on the device; None where the model has none."""
        return None if self.bias is None else self.bias.tokens[layer, place, :, :stop]

    def means(self, layer: int, place: int) -> torch.Tensor | None:
        """Means of a row's biases [Hk, C], a view on the device; None where the model has none."""
        return None if self.bias is None else self.bias.means[layer, place]

    @property
    def used_bytes(self) -> dict[str, int]:
        """Bytes in use by tier: pages that rows hold, and all slots."""
        host, device = (0 if store is None else store.used_bytes for store in (self.host, self.pages))
        return {"host": host, "device": device + (self.host.slots.used_bytes if self.host is not None else 0)}


def _part(memory: torch.Tensor, plan: CapacityPlan) -> torch.Tensor:
    """As much of the caller's memory as the plan asks for."""
    if not isinstance(memory, torch.Tensor):
        raise ConfigError(f"host_memory is a {type(memory).__name__}; want a tensor, contiguous uint8 [bytes]")
    if memory.dtype != torch.uint8 or memory.ndim != 1 or not memory.is_contiguous():
        raise ConfigError(f"host_memory is {memory.dtype} {list(memory.shape)}; want contiguous uint8 [bytes]")
    if memory.numel() < plan.host_bytes:
        raise CapacityError(
            tier="host", need=plan.host_bytes, free=memory.numel(), unit="bytes",
            hint="lend more host_memory, or let the session pin its own",
        )  # fmt: skip
    return memory[: plan.host_bytes]


@contextlib.contextmanager
def short_of_memory(plan: CapacityPlan) -> Iterator[None]:
    """Torch's error for full memory as ours."""
    try:
        yield
    except torch.OutOfMemoryError as wrong:
        free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
        raise CapacityError(
            tier="device", need=plan.device_bytes, free=free, unit="bytes",
            hint="lower places, tokens or slots, or say how much memory there is (gpu_memory_bytes)",
        ) from wrong  # fmt: skip
