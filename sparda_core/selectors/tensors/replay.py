"""Tensor half of `replay`."""

from __future__ import annotations

import numpy as np
import torch

from sparda_core.errors import RecordingError
from sparda_core.layer_view import LayerView
from sparda_core.selection import NO_BLOCK
from sparda_core.selectors.recording import Recording
from sparda_core.selectors.scored import ListedSelector


class BoundReplay(ListedSelector):
    """Looks selections up by recorded row and position."""

    def __init__(self, recording: Recording, *, source: str) -> None:
        self._recording, self._source = recording, source
        self._column: dict[int, int] = {}
        self._given = 0
        self._step: list[dict[int, int]] = [
            {int(position): step for step, position in enumerate(column) if position >= 0}
            for column in recording.positions.T
        ]

    def blocks(self, view: LayerView) -> torch.Tensor:
        """int32 [B, Hk, T, budget]; raises RecordingError for a position, row or budget it cannot serve."""
        recorded = self._recording.selections
        width = recorded.shape[-1]
        if width > view.spec.budget:
            raise RecordingError(
                f"{self._source}: selections are {width} wide and budget={view.spec.budget}: raise budget to {width}"
            )
        positions = view.positions.tolist()
        shape = (len(positions), recorded.shape[3], view.positions.shape[1], view.spec.budget)
        out = np.full(shape, NO_BLOCK, np.int32)
        for b, (row, queries) in enumerate(zip(view.rows, positions, strict=True)):
            for t, position in enumerate(queries):
                if position >= 0:
                    column = self.column_of(row)
                    out[b, :, t, :width] = recorded[self._step_of(column, position), view.layer, column]
        return torch.from_numpy(out).to(view.positions.device)

    def column_of(self, row: int) -> int:
        """Recorded row that a row plays, given out at its first call; raises RecordingError when none is left."""
        rows = len(self._step)
        if row not in self._column:
            if rows > 1 and self._given == rows:
                raise RecordingError(
                    f"{self._source}: {rows} rows were recorded, and row {row} is one more: record more rows, "
                    "or one row only, which serves all"
                )
            self._column[row] = self._given if rows > 1 else 0
            self._given += 1
        return self._column[row]

    def row_forked(self, source: int, copy: int) -> None:
        """The copy plays what its source plays."""
        if source in self._column:
            self._column[copy] = self._column[source]

    def row_retired(self, row: int) -> None:
        """Forget the row; what it played is not given to another."""
        self._column.pop(row, None)

    def _step_of(self, column: int, position: int) -> int:
        steps = self._step[column]
        if position not in steps:
            span = f"{min(steps)} to {max(steps)}" if steps else "none"
            raise RecordingError(
                f"{self._source}: position={position} of recorded row {column} was not recorded "
                f"(recorded positions: {span}): record it, or prefill up to where the recording starts"
            )
        return steps[position]
