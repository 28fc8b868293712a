"""From a running session into a recording. Torch-free: it only asks tensors for their numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparda_core.facts import StepFacts
from sparda_core.layer_view import LayerView
from sparda_core.selection import NO_BLOCK, Selection
from sparda_core.selectors.recording import Recorder, Recording
from sparda_core.shapes import BlockSpec, ModelShape


class SelectionObserver:
    """Set as a session's `on_selection`: collects every layer's selection, and adds a step once all are there.

    Rows that sit a step out, and rows that are gone, are recorded as such. A step that failed half-way
    leaves nothing behind.
    """

    def __init__(self, *, shape: ModelShape, spec: BlockSpec, selector: str, rows: Sequence[int]) -> None:
        """`rows` are the row ids to record, in the order of the recording; others are passed over."""
        self._recorder = Recorder(shape=shape, spec=spec, selector=selector)
        self._column = {row: column for column, row in enumerate(rows)}
        self._positions: npt.NDArray[np.int64] = np.full(len(self._column), -1, np.int64)
        self._chosen: Selection = np.full(
            (shape.layers, len(self._column), shape.kv_heads, spec.budget), NO_BLOCK, np.int32
        )
        self._seen: set[int] = set()

    def __call__(self, view: LayerView) -> None:
        """See the final selection of one layer of a decode step."""
        assert view.selection is not None, "observers are called once a selection is final"
        positions = view.positions[:, 0].cpu().numpy()
        here = [(b, self._column[row]) for b, row in enumerate(view.rows) if row in self._column]
        step = np.full_like(self._positions, -1)
        for b, column in here:
            step[column] = positions[b]
        if view.layer in self._seen or not np.array_equal(step, self._positions):
            self._begin(step)
        chosen = view.selection[:, :, 0].cpu().numpy()
        for b, column in here:
            self._chosen[view.layer, column, :, : chosen.shape[-1]] = chosen[b]
        self._seen.add(view.layer)
        if len(self._seen) == self._chosen.shape[0]:
            self._recorder.add(self._positions, self._chosen)
            self._begin(np.full_like(step, -1))

    def add_facts(self, facts: StepFacts) -> None:
        """Facts of the step just recorded; call it after every step or after none."""
        self._recorder.add_facts(facts)

    def recording(self) -> Recording:
        """Everything recorded so far; raises RecordingError where nothing was."""
        return self._recorder.recording()

    def _begin(self, positions: npt.NDArray[np.int64]) -> None:
        self._positions = positions
        self._chosen.fill(NO_BLOCK)
        self._seen.clear()
