"""What a GPU session takes of device and host memory, known before anything is allocated. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from sparda_core import footprint
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.shapes import BlockSpec, ModelShape

#: Context, graphs and workspaces: assumed, as in the profiles of the simulator.
RESERVED_BYTES = 2_000_000_000
#: Slots found from a memory budget are a multiple of this.
SLOT_STEP = 8
_INT = 4
#: Tokens of one prefill chunk, whose activations count as scratch.
_CHUNK = 2048
#: Most parts that decode attention is split into; each leaves a partial output, maximum and sum in float32.
_SPLITS = 32
#: Parts of the device's memory that a line names.
_TOLD = 4


@attrs.frozen(kw_only=True)
class CapacityPlan:
    """Bytes of a session, from its sizes alone.

    places            rows that it can hold at once
    tokens            most tokens of a row
    resident_layers   first layers whose every block lies on the device
    slots             per row and KV head of an offloaded layer
    kv_bytes          per value of K, V and entries on the device
    host_kv_bytes     per value in the host store; below kv_bytes it is float8, with scales on the device
    weight_bytes      per weight
    forecast          whether the model has Forecast projections
    selector_bytes    what the selector's GPU half keeps for its rows
    host_limit_bytes  most bytes of the host store; None: all that the rows can need
    gpu_memory_bytes  device memory that may be used; None: not checked
    """

    shape: ModelShape
    spec: BlockSpec
    places: int
    tokens: int
    resident_layers: int
    slots: int
    kv_bytes: int = 2
    host_kv_bytes: int = 2
    weight_bytes: int = 2
    forecast: bool = False
    page_blocks: int = footprint.PAGE_BLOCKS
    selector_bytes: int = 0
    reserved_bytes: int = RESERVED_BYTES
    host_limit_bytes: int | None = None
    gpu_memory_bytes: int | None = None

    @property
    def offloaded_layers(self) -> int:
        """Layers whose blocks lie on the host."""
        return self.shape.layers - self.resident_layers

    @property
    def float8(self) -> bool:
        """Whether the host store is narrower than the device's blocks."""
        return self.host_kv_bytes < self.kv_bytes

    @property
    def blocks(self) -> int:
        """Blocks that a row may reach, M."""
        return self.spec.block_count(self.tokens)

    @property
    def pages(self) -> int:
        """Pages of a row per layer and KV head, P."""
        return footprint.kept_blocks(self.spec, self.tokens, self.page_blocks) // self.page_blocks

    @property
    def host_blocks(self) -> int:
        """Blocks of the host store: whole pages, as many as rows can need or the limit allows."""
        blocks = self._blocks_of(self.offloaded_layers)
        if self.host_limit_bytes is not None:
            allowed = self.host_limit_bytes // (self.page_blocks * self._block(self.host_kv_bytes))
            blocks = min(blocks, allowed * self.page_blocks)
        return blocks

    @property
    def device_blocks(self) -> int:
        """Blocks of the resident layers' store."""
        return self._blocks_of(self.resident_layers)

    @property
    def host_bytes(self) -> int:
        """Bytes of pinned host memory."""
        return self.host_blocks * self._block(self.host_kv_bytes)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory."""
        return sum(self.device_parts().values())

    def device_parts(self) -> dict[str, int]:
        """Bytes of device memory by what they hold."""
        shape, spec, rows = self.shape, self.spec, self.places
        slots = footprint.slot_count(shape, rows, self.offloaded_layers, self.slots)
        return {
            "weights": int(footprint.weight_bytes(shape, forecast=self.forecast, width=self.weight_bytes)),
            "norms and biases": int(
                footprint.small_weight_bytes(shape, forecast=self.forecast, width=self.weight_bytes)
            ),
            "rotary tables": footprint.rotary_bytes(shape, self.tokens),
            "entries": self._entries(),
            "token bias": rows * footprint.bias_bytes(shape, spec, [max(self.tokens, spec.window)]),
            "slots": slots * self._block(self.kv_bytes),
            "resident pages": self.device_blocks * self._block(self.kv_bytes),
            "scales": self.host_blocks * footprint.SCALE_BYTES if self.float8 else 0,
            "tables and lists": self._tables(),
            "selector": self.selector_bytes,
            "scratch": self._scratch(spec),
            "reserved": self.reserved_bytes,
        }

    def _block(self, width: int) -> int:
        return int(footprint.block_bytes(self.shape, self.spec, width))

    def _blocks_of(self, layers: int) -> int:
        row = footprint.store_blocks(self.shape, self.spec, [self.tokens], layers, self.page_blocks)
        return self.places * row  # rows are of one length: a list of them would grow with what is asked for

    def _entries(self) -> int:
        """Compressed keys, and the newest keys of each row, which the next ones are made of."""
        ring = self.shape.layers * self.shape.kv_heads * self.spec.window * self.shape.head_dim
        row = footprint.entry_bytes(self.shape, self.spec, [max(self.tokens, self.spec.window)], self.kv_bytes)
        return self.places * (int(row) + ring * self.kv_bytes)

    def _tables(self) -> int:
        """Page tables, slot tables, selections, lists of misses, and one layer's scores."""
        budget, each = self.spec.budget, self.places * self.shape.kv_heads
        choice = self.shape.layers * (budget + 1)
        slots = self.offloaded_layers * (2 * self.slots + self.blocks)
        lists = self.offloaded_layers * (3 * budget + 3)
        return _INT * each * (choice + slots + lists + self.shape.layers * self.pages + self.blocks)

    def _scratch(self, spec: BlockSpec) -> int:
        """Activations and partial results of a step and of a prefill chunk. An estimate from above."""
        shape, width = self.shape, self.kv_bytes
        values = (shape.q_heads + 4 * shape.kv_heads) * shape.head_dim + 4 * shape.hidden + 3 * shape.ffn
        partials = shape.q_heads * (_SPLITS * (shape.head_dim + 2) + spec.entry_count(self.tokens))
        row = values * width + (partials + 2 * shape.vocab) * 4
        earlier = 3 * self.tokens * shape.kv_heads * shape.head_dim * 2 * width
        return self.places * row + min(_CHUNK, self.tokens) * values * width + earlier

    @property
    def least_host_blocks(self) -> int:
        """Blocks of a host store that holds one page of a row's every layer and KV head; it cannot work with fewer."""
        return footprint.store_blocks(self.shape, self.spec, [1], self.offloaded_layers, self.page_blocks)

    def sized(self, *, places: int | None = None, tokens: int | None = None) -> CapacityPlan:
        """The same session for other rows; what a selector keeps is taken to grow with both."""
        rows, most = self.places if places is None else places, self.tokens if tokens is None else tokens
        kept = -(-self.selector_bytes * rows * most // (self.places * self.tokens))
        return attrs.evolve(self, places=rows, tokens=most, selector_bytes=kept)

    # Does it fit? ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise CapacityError, with the numbers and what would fit, where the device's memory is too small, or the
        host store may not even hold one page of a row's every layer and KV head.
        """
        limit, least = self.gpu_memory_bytes, self.least_host_blocks
        if self.host_blocks < least:
            raise CapacityError(
                tier="host", need=least * self._block(self.host_kv_bytes), free=self.host_limit_bytes or 0,
                unit="bytes", hint="raise host_limit_bytes (--host-limit-gib), or use smaller pages (--page-blocks)",
            )  # fmt: skip
        if limit is None or self.device_bytes <= limit:
            return
        rows = largest(lambda n: self.sized(places=n).device_bytes <= limit, self.places)
        tokens = largest(lambda n: self.sized(tokens=n).device_bytes <= limit, self.tokens)
        would = [f"{rows} rows of {self.tokens} tokens"] if rows else []
        would += [f"{self.places} rows of {tokens} tokens"] if tokens else []
        fixed = (
            "not even one row of one token fits beside weights and what is reserved; raise gpu_memory_bytes "
            "(--gpu-memory-gib)"
        )
        hint = f"what fits: {' or '.join(would)}" if would else fixed
        raise CapacityError(
            tier="device", need=self.device_bytes, free=limit, unit="bytes", hint=hint,
            says=f"the session needs {self.device_bytes / 1e9:.2f} of {limit / 1e9:.2f} GB of device memory "
            f"({', '.join(f'{name} {size / 1e9:.2f}' for name, size in self.device_parts().items() if size)})",
        )  # fmt: skip

    def check_host(self, available: int) -> None:
        """Raise CapacityError where the host store is larger than `available` bytes."""
        if self.host_bytes <= available:
            return
        rows = largest(lambda n: self.sized(places=n).host_bytes <= available, self.places)
        raise CapacityError(
            tier="host", need=self.host_bytes, free=available, unit="bytes",
            hint=f"what fits: {rows} rows of {self.tokens} tokens; or keep fewer on the host with host_limit_bytes "
            "(--host-limit-gib)",
            says=f"the host store needs {self.host_bytes / 1e9:.2f} of {available / 1e9:.2f} GB",
        )  # fmt: skip

    def with_most_slots(self, *, check: bool = True) -> CapacityPlan:
        """As many slots as the device's memory has room for: a multiple of SLOT_STEP, never below the budget.

        More slots than blocks would stay empty. Raises ConfigError without `gpu_memory_bytes`; with `check`,
        CapacityError where the budget does not fit, else a plan with as many slots as the budget.
        """
        limit = self.gpu_memory_bytes
        if limit is None:
            raise ConfigError("gpu_memory_bytes is None; say how much device memory slots may be cut from")
        least = attrs.evolve(self, slots=self.spec.budget)
        if check:
            least.check()
        if not self.offloaded_layers:
            return least
        most = max(self.spec.budget, -(-self.blocks // SLOT_STEP) * SLOT_STEP)
        fits = largest(lambda n: attrs.evolve(self, slots=n).device_bytes <= limit, most)
        return attrs.evolve(self, slots=max(self.spec.budget, fits // SLOT_STEP * SLOT_STEP))

    # Telling ---------------------------------------------------------------------------------------

    def as_table(self) -> list[tuple[str, str, int]]:
        """Rows (tier, what, bytes), the sums last; parts that take nothing are left out."""
        parts = [("device", name, size) for name, size in self.device_parts().items() if size]
        parts += [("host", "pinned pages", self.host_bytes)] if self.host_bytes else []
        return [*parts, ("device", "all", self.device_bytes), ("host", "all", self.host_bytes)]

    def as_line(self) -> str:
        """One line: rows, slots, bytes of both tiers, the largest parts of the device's by name."""
        parts = sorted(((size, name) for name, size in self.device_parts().items()), reverse=True)
        named = ", ".join(f"{name} {size / 1e9:.2f}" for size, name in parts[:_TOLD])
        rows = f"{self.places} row{'s' * (self.places != 1)} of {self.tokens} tokens"
        slots = f", {self.slots} slots" if self.offloaded_layers else ""
        of = "" if self.gpu_memory_bytes is None else f" of {self.gpu_memory_bytes / 1e9:.2f}"
        host = f"; host {self.host_bytes / 1e9:.2f} GB pinned" if self.host_bytes else ""
        return f"memory for {rows}{slots}: device {self.device_bytes / 1e9:.2f}{of} GB ({named}){host}"

    def as_json(self) -> dict[str, Any]:
        """The sizes asked for and the bytes they take."""
        asked = attrs.asdict(self)
        asked["shape"] = self.shape.name
        return {
            **asked, "device_parts": self.device_parts(), "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes, "host_blocks": self.host_blocks, "device_blocks": self.device_blocks,
        }  # fmt: skip


def plan_capacity(*, slots: int | None, check: bool = True, **sizes: Any) -> CapacityPlan:
    """A checked plan; slots None: as many as `gpu_memory_bytes` has room for, or the budget without it.

    Raises CapacityError where it does not fit, unless `check` is False.
    """
    plan = CapacityPlan(slots=sizes["spec"].budget if slots is None else slots, **sizes)
    if slots is None and plan.gpu_memory_bytes is not None:
        plan = plan.with_most_slots(check=check)
    if check:
        plan.check()
    return plan


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Largest n in 0 .. most that fits, where whatever is smaller fits too and 0 counts as fitting."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
