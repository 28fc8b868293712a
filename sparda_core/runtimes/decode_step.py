"""Decode on a CPU: what each operation of a decode plan does to the tiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.kernels.attend.cpu import attend_blocks
from sparda_core.layer_view import LayerView
from sparda_core.plan import Kind, Op, Phase
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane, CopyTicket
from sparda_core.runtimes.executor import Bindings
from sparda_core.runtimes.slot_pool import Diff
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import locate, make_view, visible_tokens
from sparda_core.selector import BoundSelector

Ints = npt.NDArray[np.int64]


@attrs.define(kw_only=True)
class Counts:
    """Counts of one step by [layer, row, head]; see StepFacts."""

    selected: Ints
    misses: Ints
    opened: Ints
    late: Ints
    wasted: Ints

    @classmethod
    def zeros(cls, size: tuple[int, int, int]) -> Counts:
        """Nothing counted yet."""
        return cls(**{field.name: np.zeros(size, np.int64) for field in attrs.fields(cls)})


@attrs.define(kw_only=True)
class DecodeState:
    """One step in the making. B active rows, in batch order.

    lengths  int64 [B], tokens in the cache before the step, which is the new token's position
    opened   int64 [B], the logical block that the new token opens, -1 where it opens none
    """

    rows: tuple[int, ...]
    tokens: torch.Tensor
    lengths: Ints
    opened: Ints
    positions: torch.Tensor
    rotation: Any
    counts: Counts
    tick: int
    x: torch.Tensor | None = None
    projections: Any = None
    attention: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    forecasts: dict[int, torch.Tensor | None] = attrs.field(factory=dict)
    views: dict[int, LayerView] = attrs.field(factory=dict)
    diffs: dict[int, Diff] = attrs.field(factory=dict)


class DecodeStep:
    """Bindings of the decode plan. Observers see views; they must not change them."""

    def __init__(self, model: Any, tiers: Tiers, selector: BoundSelector, lane: CopyLane | None) -> None:
        self._model, self._tiers, self._selector, self._lane = model, tiers, selector, lane
        self.on_selection: Callable[[LayerView], None] | None = None
        self.on_layer: Callable[[LayerView], None] | None = None

    def bindings(self, selector_kinds: frozenset[str]) -> Bindings[DecodeState]:
        """The table for a plan whose selector runs `selector_kinds`."""
        compute: dict[str, Callable[[Op, DecodeState], None]] = {
            Kind.EMBED: self._embed, Kind.PROJECT: self._project, Kind.ENTRIES: self._entries, Kind.DIFF: self._diff,
            Kind.APPEND: self._append, Kind.ATTEND: self._attend, Kind.OUTPUT: self._output, Kind.MLP: self._mlp,
            Kind.HEAD: self._head,
        }  # fmt: skip
        compute |= dict.fromkeys(selector_kinds, self._select)
        return Bindings(compute=compute, moves={Kind.FETCH: self._fetch}, waited=self._waited)

    def _embed(self, op: Op, state: DecodeState) -> None:
        state.x = self._model.embed(state.tokens)

    def _project(self, op: Op, state: DecodeState) -> None:
        made = state.projections = self._model.project(op.layer, state.x, state.rotation)
        state.forecasts[op.layer + 1] = made.forecast_next
        if made.forecast_own is not None:
            state.forecasts[op.layer] = made.forecast_own

    def _entries(self, op: Op, state: DecodeState) -> None:
        layer, key = op.layer, state.projections.k
        store = self._tiers.store(layer)

        def recent(row: int, start: int, stop: int) -> npt.NDArray[np.floating]:
            return store.read(layer, row, start, stop)[0]

        self._tiers.entries.extend(layer, state.rows, key.numpy(), state.lengths, recent)
        self._selector.observe(self._view(layer, layer, state), key)

    def _view(self, target: int, source: int, state: DecodeState, *, appended: bool = False) -> LayerView:
        return make_view(
            self._model, self._tiers, target=target, source=source, phase=Phase.DECODE, rows=state.rows,
            lengths=state.lengths, positions=state.positions, made=state.projections,
            forecast=state.forecasts.get(target), appended=appended,
        )  # fmt: skip

    def _select(self, op: Op, state: DecodeState) -> None:
        view = state.views.get(op.layer)
        if view is None:
            view = state.views[op.layer] = self._view(op.layer, op.source, state)
        self._selector.run(op.kind, view)

    def _chosen(self, layer: int, state: DecodeState) -> npt.NDArray[np.int32]:
        """Selection of a layer, int32 [B, Hk, 1, W]; seen by the observer the first time it is asked for."""
        view = state.views[layer]
        assert view.selection is not None, f"selector left layer {layer} without a selection"
        if "seen" not in view.scratch:
            view.scratch["seen"] = True
            if self.on_selection is not None:
                self.on_selection(view)
        chosen: npt.NDArray[np.int32] = view.selection.numpy()
        return chosen

    def _diff(self, op: Op, state: DecodeState) -> None:
        layer, counts = op.layer, state.counts
        chosen = self._chosen(layer, state)[:, :, 0]
        diff = self._tiers.pools[layer].diff(state.rows, chosen, state.opened, state.tick)
        state.diffs[layer] = diff
        counts.misses[layer], counts.wasted[layer] = diff.misses, diff.wasted

    def _fetch(self, op: Op, state: DecodeState) -> CopyTicket | None:
        layer, diff = op.layer, state.diffs[op.layer]
        if not diff.miss_slots.size:
            return None
        host, pool = self._tiers.host, self._tiers.pools[layer]
        source = np.empty_like(diff.miss_slots)
        for i, row in enumerate(state.rows):
            mine = diff.miss_rows == i
            source[mine] = host.physical(layer, row)[diff.miss_heads[mine], diff.miss_blocks[mine]]
        assert self._lane is not None, "an offloading plan needs a copy lane"
        return self._lane.submit(
            CopyJob(source=host.array, target=pool.array, source_ids=source, target_ids=diff.miss_slots)
        )

    def _waited(self, op: Op, ticket: CopyTicket, state: DecodeState) -> None:
        diff, moved = state.diffs[op.layer], ticket.moved
        np.add.at(state.counts.late[op.layer], (diff.miss_rows[moved:], diff.miss_heads[moved:]), 1)

    def _append(self, op: Op, state: DecodeState) -> None:
        layer, made = op.layer, state.projections
        key, value = made.k.numpy(), made.v.numpy()
        store, block = self._tiers.store(layer), self._tiers.spec.block
        positions = state.lengths[:, None]
        append_tokens(store.array, store.physical_at(layer, state.rows, positions), positions % block, key, value)
        if layer in state.diffs:
            slots = self._tail_slots(layer, state)
            append_tokens(self._tiers.pools[layer].array, slots, positions % block, key, value)

    def _tail_slots(self, layer: int, state: DecodeState) -> Ints:
        """Slot of each row's current block, int64 [B, Hk, 1]: forced, so the last one selected."""
        chosen = self._chosen(layer, state)[:, :, 0]
        last = (chosen >= 0).sum(-1, keepdims=True) - 1
        return np.take_along_axis(state.diffs[layer].physical, last, axis=-1)

    def _attend(self, op: Op, state: DecodeState) -> None:
        layer, counts = op.layer, state.counts
        chosen = self._chosen(layer, state)
        if layer in state.diffs:
            pool = self._tiers.pools[layer]
            array, physical = pool.array, state.diffs[layer].physical[:, :, None]
            pool.mark_read(physical)
        else:
            array = self._tiers.device.array
            physical = locate(self._tiers.device, layer, state.rows, chosen)
        counts.selected[layer] = (chosen[:, :, 0] >= 0).sum(-1)
        counts.opened[layer] = (state.opened >= 0)[:, None]
        if self.on_layer is not None:
            self.on_layer(self._view(layer, layer, state, appended=True))
        tokens = visible_tokens(chosen, state.lengths[:, None], self._tiers.spec.block)
        state.attention = attend_blocks(
            state.projections.q, torch.from_numpy(array), torch.from_numpy(physical), torch.from_numpy(tokens)
        )

    def _output(self, op: Op, state: DecodeState) -> None:
        state.x = self._model.output(op.layer, state.x, state.attention)

    def _mlp(self, op: Op, state: DecodeState) -> None:
        state.x = self._model.mlp(op.layer, state.x)

    def _head(self, op: Op, state: DecodeState) -> None:
        assert state.x is not None
        state.logits = self._model.head(state.x[:, -1])
