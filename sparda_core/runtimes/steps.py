"""What decode and prefill share on a CPU: the state of a step, and the operations that touch no tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.layer_view import LayerView
from sparda_core.plan import Kind, Op, Phase
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import bias_of, keys_of
from sparda_core.selector import BoundSelector

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]


@attrs.define(kw_only=True)
class StepState:
    """One step in the making. B active rows in batch order, T new tokens each.

    tokens     int64 [B, T]
    lengths    int64 [B], tokens in the cache before the step: the position of the first new token
    positions  int64 [B, T]
    rotation   the model's rotary table at `positions`
    x          [B, T, hidden], residual stream
    forecasts  by target layer, [B, Hk, T, D]
    views      by target layer, while its selection is being made
    """

    phase: Phase
    rows: tuple[int, ...]
    tokens: torch.Tensor
    lengths: Ints
    positions: torch.Tensor
    rotation: Any
    x: torch.Tensor | None = None
    projections: Any = None
    attention: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    forecasts: dict[int, torch.Tensor | None] = attrs.field(factory=dict)
    views: dict[int, LayerView] = attrs.field(factory=dict)

    @property
    def last_logits(self) -> torch.Tensor:
        """[B, vocab], once the plan has run."""
        assert self.logits is not None, "the plan has no head"
        return self.logits


StateT = TypeVar("StateT", bound=StepState)


class Steps(Generic[StateT]):
    """Bindings common to both phases; a phase adds its own in `table`."""

    def __init__(self, model: Any, tiers: Tiers, selector: BoundSelector) -> None:
        self.model, self.tiers, self.selector = model, tiers, selector

    def table(self, selector_kinds: frozenset[str]) -> dict[str, Callable[[Op, StateT], None]]:
        """Kind -> function, for a plan whose selector runs `selector_kinds`."""
        table: dict[str, Callable[[Op, StateT], None]] = {
            Kind.EMBED: self._embed, Kind.PROJECT: self._project, Kind.ENTRIES: self._entries,
            Kind.OUTPUT: self._output, Kind.MLP: self._mlp, Kind.HEAD: self._head,
        }  # fmt: skip
        return table | dict.fromkeys(selector_kinds, self._select)

    def view(self, target: int, source: int, state: StateT, *, appended: bool = False) -> LayerView:
        """What a selector may see of `source` when it selects for `target`.

        appended  whether the new tokens of `target` are in its store already
        """
        own, made = target == source, state.projections
        return LayerView(
            layer=target, source=source, phase=state.phase, spec=self.tiers.spec, rows=state.rows,
            positions=state.positions, x=made.x_norm, query=made.q if own else None,
            forecast=state.forecasts.get(target), entries=self.tiers.entries.view(target, state.rows),
            query_of=self.model.query_of,
            keys=keys_of(
                self.tiers.store(target), target, state.rows, state.lengths, made.k if own else None, stored=appended
            ),
            bias=None if self.tiers.bias is None else self.tiers.bias.means(target, state.rows),
            token_bias=bias_of(self.tiers.bias, target, state.rows, state.lengths + own * state.tokens.shape[1]),
        )  # fmt: skip

    def _embed(self, op: Op, state: StateT) -> None:
        state.x = self.model.embed(state.tokens)

    def _project(self, op: Op, state: StateT) -> None:
        made = state.projections = self.model.project(op.layer, state.x, state.rotation)
        if made.forecast_next is not None:
            state.forecasts[op.layer + self.model.forecast_lead] = made.forecast_next
        if made.forecast_own is not None:
            state.forecasts[op.layer] = made.forecast_own

    def _entries(self, op: Op, state: StateT) -> None:
        layer, key = op.layer, state.projections.k
        store = self.tiers.store(layer)

        def recent(row: int, start: int, stop: int) -> Floats:
            return store.read_keys(layer, row, start, stop)

        self.tiers.entries.extend(layer, state.rows, key.numpy(), state.lengths, recent)
        if self.tiers.bias is not None:
            self.tiers.bias.extend(layer, state.rows, state.projections.bias, state.lengths)
        self.selector.observe(self.view(layer, layer, state), key)

    def _select(self, op: Op, state: StateT) -> None:
        view = state.views.get(op.layer)
        if view is None:
            view = state.views[op.layer] = self.view(op.layer, op.source, state)
        self.selector.run(op.kind, view)

    def _output(self, op: Op, state: StateT) -> None:
        state.x = self.model.output(op.layer, state.x, state.attention)

    def _mlp(self, op: Op, state: StateT) -> None:
        state.x = self.model.mlp(op.layer, state.x)

    def _head(self, op: Op, state: StateT) -> None:
        assert state.x is not None
        state.logits = self.model.head(state.x[:, -1])
