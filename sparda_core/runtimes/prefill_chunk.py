"""Prefill on a CPU: what each operation of a prefill plan does. One row, T tokens, any offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.kernels.attend_dense.cpu import attend_dense
from sparda_core.layer_view import LayerView
from sparda_core.plan import Kind, Op, Phase
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane, CopyTicket
from sparda_core.runtimes.executor import Bindings
from sparda_core.runtimes.snapshot import PromptQueries
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import make_view, visible_tokens
from sparda_core.selector import BoundSelector

Ints = npt.NDArray[np.int64]


@attrs.define(kw_only=True)
class ChunkState:
    """One chunk in the making: tokens [1, T] of one row, the first at position `offset`."""

    row: int
    tokens: torch.Tensor
    offset: int
    positions: torch.Tensor
    rotation: Any
    x: torch.Tensor | None = None
    projections: Any = None
    attention: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    forecasts: dict[int, torch.Tensor | None] = attrs.field(factory=dict)
    views: dict[int, LayerView] = attrs.field(factory=dict)

    @property
    def stop(self) -> int:
        """Tokens in the cache after the chunk."""
        return self.offset + self.tokens.shape[1]


class PrefillChunk:
    """Bindings of the prefill plans. Offloaded layers attend to a staged copy; there are two buffers of it."""

    def __init__(
        self, model: Any, tiers: Tiers, selector: BoundSelector, lane: CopyLane | None, queries: PromptQueries
    ) -> None:
        self._model, self._tiers, self._selector, self._lane, self._queries = model, tiers, selector, lane, queries
        self._staged: list[npt.NDArray[np.floating]] = [np.empty(0), np.empty(0)]

    def bindings(self, selector_kinds: frozenset[str]) -> Bindings[ChunkState]:
        """The table for a plan whose selector runs `selector_kinds` (empty for dense prefill)."""
        compute: dict[str, Callable[[Op, ChunkState], None]] = {
            Kind.EMBED: self._embed, Kind.PROJECT: self._project, Kind.ENTRIES: self._entries,
            Kind.APPEND: self._append, Kind.ATTEND: self._attend, Kind.OUTPUT: self._output, Kind.MLP: self._mlp,
            Kind.HEAD: self._head,
        }  # fmt: skip
        compute |= dict.fromkeys(selector_kinds, self._select)
        return Bindings(compute=compute, moves={Kind.STAGE: self._stage}, waited=lambda op, ticket, state: None)

    def release(self) -> None:
        """Give the staging buffers back."""
        self._staged = [np.empty(0), np.empty(0)]

    def _embed(self, op: Op, state: ChunkState) -> None:
        state.x = self._model.embed(state.tokens)

    def _project(self, op: Op, state: ChunkState) -> None:
        made = state.projections = self._model.project(op.layer, state.x, state.rotation)
        state.forecasts[op.layer + 1] = made.forecast_next
        if made.forecast_own is not None:
            state.forecasts[op.layer] = made.forecast_own

    def _entries(self, op: Op, state: ChunkState) -> None:
        layer, key = op.layer, state.projections.k
        store = self._tiers.store(layer)

        def recent(row: int, start: int, stop: int) -> npt.NDArray[np.floating]:
            return store.read(layer, row, start, stop)[0]

        self._tiers.entries.extend(layer, (state.row,), key.numpy(), np.array([state.offset]), recent)
        self._queries.see(state.row, layer, state.projections.q, state.offset)
        self._selector.observe(self._view(layer, state), key)

    def _view(self, layer: int, state: ChunkState) -> LayerView:
        return make_view(
            self._model, self._tiers, target=layer, source=layer, phase=Phase.PREFILL, rows=(state.row,),
            lengths=np.array([state.offset]), positions=state.positions, made=state.projections,
            forecast=state.forecasts.get(layer), appended=False,
        )  # fmt: skip

    def _append(self, op: Op, state: ChunkState) -> None:
        store = self._tiers.store(op.layer)
        positions = state.positions.numpy()
        where = store.physical_at(op.layer, (state.row,), positions)
        self._write(store.array, where, state)

    def _write(self, array: npt.NDArray[np.floating], where: Ints, state: ChunkState) -> None:
        offsets = state.positions.numpy() % self._tiers.spec.block
        append_tokens(array, where, offsets, state.projections.k.numpy(), state.projections.v.numpy())

    def _select(self, op: Op, state: ChunkState) -> None:
        view = state.views.get(op.layer)
        if view is None:
            view = state.views[op.layer] = self._view(op.layer, state)
        self._selector.run(op.kind, view)

    def _buffer(self, layer: int, state: ChunkState) -> npt.NDArray[np.floating]:
        """Staging buffer of a layer, [Hk * blocks, 2, block, D], head-major; grown between layers only."""
        host, spec = self._tiers.host, self._tiers.spec
        size = (self._tiers.shape.kv_heads * spec.block_count(state.stop), *host.array.shape[1:])
        if self._staged[layer % 2].shape != size:
            self._staged[layer % 2] = np.empty(size, host.array.dtype)
        return self._staged[layer % 2]

    def _stage(self, op: Op, state: ChunkState) -> CopyTicket | None:
        spec = self._tiers.spec
        target = self._buffer(op.layer, state)
        earlier = spec.block_count(state.offset)
        if not earlier:
            return None
        source = self._tiers.host.physical(op.layer, state.row)[:, :earlier]
        heads = np.arange(source.shape[0])[:, None] * spec.block_count(state.stop)
        places = heads + np.arange(earlier)
        assert self._lane is not None, "an offloading plan needs a copy lane"
        return self._lane.submit(
            CopyJob(
                source=self._tiers.host.array, target=target, source_ids=np.ascontiguousarray(source).ravel(),
                target_ids=places.ravel(),
            )  # fmt: skip
        )

    def _attend(self, op: Op, state: ChunkState) -> None:
        layer = op.layer
        if layer >= self._tiers.resident:
            array = self._buffer(layer, state)
            blocks = array.shape[0] // self._tiers.shape.kv_heads
            table = np.arange(array.shape[0]).reshape(-1, blocks)
            at = state.positions.numpy() // self._tiers.spec.block
            self._write(array, table[:, at[0]][None], state)
        else:
            array, table = self._tiers.device.array, self._tiers.device.physical(layer, state.row)
        view = state.views.get(layer)
        if view is None:
            state.attention = self._dense(array, table, state)
            return
        assert view.selection is not None, f"selector left layer {layer} without a selection"
        chosen = view.selection.numpy()
        flat = np.maximum(chosen[0], 0).reshape(table.shape[0], -1)
        physical = np.take_along_axis(table, flat, axis=1).reshape(chosen.shape)
        physical[chosen < 0] = -1
        tokens = visible_tokens(chosen, state.positions.numpy(), self._tiers.spec.block)
        state.attention = attend_blocks(
            state.projections.q, torch.from_numpy(array), torch.from_numpy(physical), torch.from_numpy(tokens)
        )

    def _dense(self, array: npt.NDArray[np.floating], table: Ints, state: ChunkState) -> torch.Tensor:
        blocks = torch.from_numpy(array)[torch.from_numpy(table[:, : self._tiers.spec.block_count(state.stop)])]
        keys, values = (
            blocks[:, :, part].reshape(1, blocks.shape[0], -1, blocks.shape[-1])[:, :, : state.stop] for part in (0, 1)
        )
        return attend_dense(state.projections.q, keys, values, state.offset)

    def _output(self, op: Op, state: ChunkState) -> None:
        state.x = self._model.output(op.layer, state.x, state.attention)

    def _mlp(self, op: Op, state: ChunkState) -> None:
        state.x = self._model.mlp(op.layer, state.x)

    def _head(self, op: Op, state: ChunkState) -> None:
        assert state.x is not None
        state.logits = self._model.head(state.x[:, -1])
