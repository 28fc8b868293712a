"""Watcher: recall and churn of a running session, seen through its observers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs
import numpy as np

from sparda_core.evaluate.churn import Churn, ChurnTally
from sparda_core.evaluate.recall import Recall, RecallTally
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.selection import Selection
from sparda_core.selector import BoundSelector, Selector
from sparda_core.shapes import BlockSpec, ModelShape


class Watcher:
    """Compares each selection with what reference selectors would have chosen from the same state.

    A reference sees the layer's own query and every key up to the current token, in the very state
    that the watched selector produced: so recall judges one choice, not the drift of a whole run.
    """

    def __init__(
        self, *, shape: ModelShape, spec: BlockSpec, references: Mapping[str, Selector], rows: Collection[int]
    ) -> None:
        """Watch `rows` only. `spec` says which blocks count as forced, and what the references choose by.

        taken  every selection seen, int32 [1, Hk, 1, width], by (layer, row) and position
        """
        self._spec, self._rows = spec, frozenset(rows)
        self._references = {name: (s, s.bind(shape=shape, spec=spec)) for name, s in references.items()}
        self._tallies = {name: [RecallTally(spec=spec) for _ in range(shape.layers)] for name in references}
        self._churn = ChurnTally(spec=spec)
        self._chosen: dict[int, Selection] = {}
        self.taken: dict[tuple[int, int], dict[int, Selection]] = {}
        self.judging: frozenset[str] = frozenset(references)

    def attach(self, session: Any) -> None:
        """Become the session's observer."""
        session.on_selection = self.saw_selection
        session.on_layer = self.saw_layer

    def saw_selection(self, view: LayerView) -> None:
        """The final selection of a layer."""
        if view.phase != Phase.DECODE or view.selection is None:
            return
        ids = view.selection.detach().cpu().numpy().astype(np.int32)
        self._chosen[view.layer] = ids
        positions = view.positions.cpu().numpy()
        continued, before = [], []
        for at, row in enumerate(view.rows):
            position = int(positions[at, 0])
            if row not in self._rows or position < 0:
                continue
            seen = self.taken.setdefault((view.layer, row), {})
            if position - 1 in seen:
                continued.append(at)
                before.append(seen[position - 1])
            seen[position] = ids[at : at + 1].copy()
        if continued:
            self._churn.add(ids[continued], np.concatenate(before), positions[continued])

    def saw_layer(self, view: LayerView) -> None:
        """A layer about to attend, with its own query: run the references that are judging."""
        if view.phase != Phase.DECODE or not self.judging:
            return
        positions = view.positions.cpu().numpy()
        watched = np.array([row in self._rows for row in view.rows])[:, None]
        judged = np.where(watched, positions, -1)
        if (judged < 0).all():
            return
        for name in self.judging:
            selector, bound = self._references[name]
            wanted = self._choose(selector, bound, view)
            self._tallies[name][view.layer].add(self._chosen[view.layer], wanted, judged)

    def _choose(self, selector: Selector, bound: BoundSelector, view: LayerView) -> Selection:
        own = attrs.evolve(view, spec=self._spec, scores=None, selection=None, scratch={})
        for kind in selector.operations(view.layer, Phase.DECODE, 0):
            bound.run(kind, own)
        assert own.selection is not None
        return own.selection.cpu().numpy().astype(np.int32)

    def recall(self, reference: str) -> Recall:
        """Recall against one reference, over all layers."""
        total = RecallTally(spec=self._spec)
        for tally in self._tallies[reference]:
            total.merge(tally)
        return total.result()

    def recall_by_layer(self, reference: str) -> tuple[Recall, ...]:
        """The same, layer by layer."""
        return tuple(tally.result() for tally in self._tallies[reference])

    def churn(self) -> Churn:
        """Churn over all layers, rows and steps seen."""
        return self._churn.result()
