"""Prefill on a CPU: what each operation of a prefill plan does. One row, T tokens, any offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch

from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.kernels.attend_dense.cpu import attend_dense
from sparda_core.layer_view import LayerView
from sparda_core.plan import Kind, Op, Phase
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane, CopyTicket
from sparda_core.runtimes.executor import Bindings
from sparda_core.runtimes.snapshot import PromptQueries
from sparda_core.runtimes.steps import Floats, Ints, Steps, StepState
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import take_blocks, visible_tokens
from sparda_core.selector import BoundSelector


@attrs.define(kw_only=True)
class ChunkState(StepState):
    """A prefill chunk: B = 1."""

    phase: Phase = Phase.PREFILL

    @property
    def offset(self) -> int:
        """Position of the first token."""
        return int(self.lengths[0])

    @property
    def stop(self) -> int:
        """Tokens in the cache after the chunk."""
        return self.offset + self.tokens.shape[1]


class PrefillChunk(Steps[ChunkState]):
    """Bindings of the prefill plans. Offloaded layers attend to a staged copy; there are two buffers of it."""

    def __init__(
        self, model: Any, tiers: Tiers, selector: BoundSelector, lane: CopyLane | None, queries: PromptQueries
    ) -> None:
        super().__init__(model, tiers, selector)
        self._lane, self._queries = lane, queries
        self.on_selection: Callable[[LayerView], None] | None = None
        self.release()

    def bindings(self, selector_kinds: frozenset[str]) -> Bindings[ChunkState]:
        """Everything a prefill plan needs; `selector_kinds` is empty for dense prefill."""
        own = {Kind.APPEND: self._append, Kind.ATTEND: self._attend}
        return Bindings(
            compute=self.table(selector_kinds) | own, moves={Kind.STAGE: self._stage}, waited=lambda *_: None
        )  # fmt: skip

    def release(self) -> None:
        """Give the staging buffers back."""
        self._staged: list[Floats] = [np.empty(0), np.empty(0)]

    def _append(self, op: Op, state: ChunkState) -> None:
        self._queries.see(state.rows[0], op.layer, state.projections.q, state.offset)
        store = self.tiers.store(op.layer)
        self._write(store.array, store.physical_at(op.layer, state.rows, state.positions.numpy()), state)

    def _write(self, array: Floats, where: Ints, state: ChunkState) -> None:
        offsets = state.positions.numpy() % self.tiers.spec.block
        append_tokens(array, where, offsets, state.projections.k.numpy(), state.projections.v.numpy())

    def _buffer(self, layer: int, state: ChunkState) -> Floats:
        """Staging buffer of a layer, [Hk * blocks, 2, block, D], head-major; layers two apart share one."""
        size = (self.tiers.shape.kv_heads * self.tiers.spec.block_count(state.stop), *self.tiers.host.array.shape[1:])
        if self._staged[layer % 2].shape != size:
            self._staged[layer % 2] = np.empty(size, self.tiers.host.array.dtype)
        return self._staged[layer % 2]

    def _stage(self, op: Op, state: ChunkState) -> CopyTicket | None:
        spec = self.tiers.spec
        target, earlier = self._buffer(op.layer, state), spec.block_count(state.offset)
        if not earlier:
            return None
        source = self.tiers.host.physical(op.layer, state.rows[0])[:, :earlier]
        places = np.arange(source.shape[0])[:, None] * spec.block_count(state.stop) + np.arange(earlier)
        assert self._lane is not None, "an offloading plan needs a copy lane"
        return self._lane.submit(
            CopyJob(source=self.tiers.host.array, target=target, source_ids=source.ravel(), target_ids=places.ravel())
        )

    def _attend(self, op: Op, state: ChunkState) -> None:
        array, table = self._where(op.layer, state)
        view = state.views.get(op.layer)
        if view is None:
            state.attention = self._dense(op.layer, array, table, state)
            return
        assert view.selection is not None, f"selector left layer {op.layer} without a selection"
        if self.on_selection is not None:
            self.on_selection(view)
        chosen = view.selection.numpy()
        physical = take_blocks(table, chosen[0])[None]
        tokens = visible_tokens(chosen, state.positions.numpy(), self.tiers.spec.block)
        state.attention = attend_blocks(
            state.projections.q, torch.from_numpy(array), torch.from_numpy(physical), torch.from_numpy(tokens),
            None if self.tiers.bias is None else self.tiers.bias.listed(op.layer, state.rows, chosen),
        )  # fmt: skip

    def _where(self, layer: int, state: ChunkState) -> tuple[Floats, Ints]:
        """The tier a layer attends to, the chunk's own tokens included, and its table [Hk, blocks]."""
        if layer < self.tiers.resident:
            return self.tiers.device.array, self.tiers.device.physical(layer, state.rows[0])
        array = self._buffer(layer, state)
        table = np.arange(array.shape[0]).reshape(self.tiers.shape.kv_heads, -1)
        self._write(array, table[:, state.positions.numpy()[0] // self.tiers.spec.block][None], state)
        return array, table

    def _dense(self, layer: int, array: Floats, table: Ints, state: ChunkState) -> torch.Tensor:
        blocks = torch.from_numpy(array)[torch.from_numpy(table[:, : self.tiers.spec.block_count(state.stop)])]
        keys, values = (
            blocks[:, :, part].reshape(1, blocks.shape[0], -1, blocks.shape[-1])[:, :, : state.stop] for part in (0, 1)
        )
        bias = None if self.tiers.bias is None else self.tiers.bias.of(layer, state.rows[0], state.stop)[None]
        return attend_dense(state.projections.q, keys, values, state.offset, bias)
