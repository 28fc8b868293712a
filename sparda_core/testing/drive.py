"""Drive: runs a selector over the texts of a World as a session would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.selection import check_selection
from sparda_core.selector import BoundSelector, Selector
from sparda_core.testing.world import World

Ids = npt.NDArray[np.int32]


def check_view(view: LayerView) -> None:
    """Raise ConfigError, or AssertionError for a wrong shape, unless the selection of a view is lawful."""
    assert view.selection is not None
    ids = view.selection.numpy()
    heads = view.entries.buffer.shape[1]
    assert ids.shape == (view.positions.shape[0], heads, view.positions.shape[1], view.spec.budget)
    check_selection(ids, spec=view.spec, positions=view.positions.numpy())


class Drive:
    """One bound selector; `seen` is called with every view whose selection is made, and checks it by default."""

    def __init__(
        self, selector: Selector, world: World, *, lead: int | None = None,
        seen: Callable[[LayerView], None] = check_view,
    ) -> None:  # fmt: skip
        known = selector.lead if lead is None else lead
        assert known is not None, "give the lead of a selector that takes any"
        self.selector, self.world, self.lead, self.seen = selector, world, known, seen
        self.bound: BoundSelector = selector.bind(shape=world.shape, spec=world.spec)

    def prefill(self, text: int, tokens: int, *, chunk: int = 10**6, start: int = 0, row: int | None = None) -> Ids:
        """Tokens start .. tokens - 1 of one text; selections int32 [L, 1, Hk, T, budget]."""
        rows = (text if row is None else row,)
        parts = []
        for first in range(start, tokens, chunk):
            at = [list(range(first, min(first + chunk, tokens)))]
            parts.append(self._layers([text], at, rows, Phase.PREFILL))
        return np.concatenate(parts, axis=3)

    def decode(self, texts: Sequence[int], positions: Sequence[int], rows: Sequence[int] | None = None) -> Ids:
        """One token a row; selections int32 [L, B, Hk, 1, budget]. A negative position is a row that sits it out."""
        return self._layers(texts, [[at] for at in positions], tuple(texts if rows is None else rows), Phase.DECODE)

    def _layers(
        self, texts: Sequence[int], at: Sequence[Sequence[int]], rows: tuple[int, ...], phase: Phase
    ) -> Ids:
        lead = self.lead if phase is Phase.DECODE else 0
        layers = self.world.shape.layers
        chosen: dict[int, Ids] = {}
        for layer in range(layers):
            own = self.world.view(texts, at, layer=layer, phase=phase, rows=rows)
            self.bound.observe(own, self.world.new_keys(texts, at, layer))
            if layer < lead or lead == 0:
                chosen[layer] = self._select(own, layer)
            if lead and layer + lead < layers:
                early = self.world.view(texts, at, layer=layer + lead, source=layer, phase=phase, rows=rows)
                chosen[layer + lead] = self._select(early, layer + lead)
        return np.stack([chosen[layer] for layer in range(layers)])

    def _select(self, view: LayerView, layer: int) -> Ids:
        for kind in self.selector.operations(layer, view.phase, layer - view.source):
            self.bound.run(kind, view)
        assert view.selection is not None, f"the last operation left layer {layer} without a selection"
        self.seen(view)
        ids: Ids = view.selection.numpy()
        return ids
