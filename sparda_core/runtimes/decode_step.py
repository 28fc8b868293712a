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
from sparda_core.kernels.diff.result import Diff
from sparda_core.layer_view import LayerView
from sparda_core.plan import Kind, Op, Phase
from sparda_core.policy import SCORE
from sparda_core.runtimes.copy_lane import CopyJob, CopyLane, CopyTicket
from sparda_core.runtimes.executor import Bindings
from sparda_core.runtimes.steps import Ints, Steps, StepState
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import take_blocks, visible_tokens
from sparda_core.selector import BoundSelector


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
class DecodeState(StepState):
    """A decode step: T = 1.

    opened  int64 [B], the logical block that the new token opens, -1 where it opens none
    diffs   by offloaded layer: slots of the selection, and what had to move
    """

    phase: Phase = Phase.DECODE
    opened: Ints
    counts: Counts
    tick: int
    diffs: dict[int, Diff] = attrs.field(factory=dict)


class DecodeStep(Steps[DecodeState]):
    """Bindings of the decode plans. Observers see views; they must not change them."""

    def __init__(self, model: Any, tiers: Tiers, selector: BoundSelector, lane: CopyLane | None) -> None:
        super().__init__(model, tiers, selector)
        self._lane = lane
        self.on_selection: Callable[[LayerView], None] | None = None
        self.on_layer: Callable[[LayerView], None] | None = None

    def bindings(self, selector_kinds: frozenset[str]) -> Bindings[DecodeState]:
        """Everything a decode plan needs."""
        own = {Kind.DIFF: self._diff, Kind.APPEND: self._append, Kind.ATTEND: self._attend}
        return Bindings(
            compute=self.table(selector_kinds) | own, moves={Kind.FETCH: self._fetch}, waited=self._waited
        )  # fmt: skip

    def _chosen(self, layer: int, state: DecodeState) -> npt.NDArray[np.int32]:
        """Selection of a layer, int32 [B, Hk, 1, W]; the observer sees it the first time it is asked for."""
        view = state.views[layer]
        assert view.selection is not None, f"selector left layer {layer} without a selection"
        if "seen" not in view.scratch:
            view.scratch["seen"] = True
            if self.on_selection is not None:
                self.on_selection(view)
        chosen: npt.NDArray[np.int32] = view.selection.numpy()
        return chosen

    def _diff(self, op: Op, state: DecodeState) -> None:
        chosen = self._chosen(op.layer, state)[:, :, 0]
        pool, scores = self.tiers.pools[op.layer], None
        if pool.policy == SCORE:
            made = state.views[op.layer].scores
            assert made is not None, f"selector left layer {op.layer} without scores"
            scores = made[:, :, 0].numpy()
        diff = pool.diff(state.rows, chosen, state.opened, state.tick, scores)
        state.diffs[op.layer] = diff
        state.counts.misses[op.layer], state.counts.wasted[op.layer] = diff.misses, diff.wasted

    def _fetch(self, op: Op, state: DecodeState) -> CopyTicket | None:
        diff, host = state.diffs[op.layer], self.tiers.host
        if not diff.miss_slots.size:
            return None
        source = host.locate(op.layer, state.rows, diff.miss_rows, diff.miss_heads, diff.miss_blocks)
        assert self._lane is not None, "an offloading plan needs a copy lane"
        target = self.tiers.pools[op.layer].array
        return self._lane.submit(
            CopyJob(source=host.array, target=target, source_ids=source, target_ids=diff.miss_slots)
        )

    def _waited(self, op: Op, ticket: Any, state: DecodeState) -> None:
        diff, moved = state.diffs[op.layer], ticket.moved
        np.add.at(state.counts.late[op.layer], (diff.miss_rows[moved:], diff.miss_heads[moved:]), 1)

    def _append(self, op: Op, state: DecodeState) -> None:
        """K and V to the block's slot, and through to the host store."""
        layer, made = op.layer, state.projections
        store, positions = self.tiers.store(layer), state.lengths[:, None]
        given = (positions % self.tiers.spec.block, made.k.numpy(), made.v.numpy())
        append_tokens(store.array, store.physical_at(layer, state.rows, positions), *given)
        if layer in state.diffs:
            append_tokens(self.tiers.pools[layer].array, self._tail_slots(layer, state), *given)

    def _tail_slots(self, layer: int, state: DecodeState) -> Ints:
        """Slot of each row's current block, int64 [B, Hk, 1]: forced, so the last one selected."""
        last = (self._chosen(layer, state)[:, :, 0] >= 0).sum(-1, keepdims=True) - 1
        return np.take_along_axis(state.diffs[layer].physical, last, axis=-1)

    def _attend(self, op: Op, state: DecodeState) -> None:
        layer, counts = op.layer, state.counts
        chosen = self._chosen(layer, state)
        array, physical = self._where(layer, chosen, state)
        counts.selected[layer] = (chosen[:, :, 0] >= 0).sum(-1)
        counts.opened[layer] = (state.opened >= 0)[:, None]
        if self.on_layer is not None:
            self.on_layer(self.view(layer, layer, state, appended=True))
        tokens = visible_tokens(chosen, state.lengths[:, None], self.tiers.spec.block)
        state.attention = attend_blocks(
            state.projections.q, torch.from_numpy(array), torch.from_numpy(physical), torch.from_numpy(tokens),
            None if self.tiers.bias is None else self.tiers.bias.listed(layer, state.rows, chosen),
        )  # fmt: skip

    def _where(
        self, layer: int, chosen: npt.NDArray[np.int32], state: DecodeState
    ) -> tuple[npt.NDArray[np.floating], Ints]:
        """The tier a layer attends to, and where in it the selected blocks lie."""
        if layer in state.diffs:
            pool, physical = self.tiers.pools[layer], state.diffs[layer].physical
            pool.mark_read(physical)
            return pool.array, physical[:, :, None]
        device = self.tiers.device
        tables = [device.physical(layer, row) for row in state.rows]
        return device.array, np.stack([take_blocks(table, part) for table, part in zip(tables, chosen, strict=True)])
