"""A cell's plan is told before any of its memory is taken, the model's weights included."""

from __future__ import annotations

import numpy as np
import pytest

from sparda_core.bench.decode.cell import Cell, core_cells
from sparda_core.bench.decode.measure import Bench
from sparda_core.bench.decode.store import Settings
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.models.model import Model


class Taken(Exception):  # noqa: N818 - no failure, but a place to stop at
    """Weights would have been made."""


class Planning(Bench):
    """On a GPU of 150 GB that makes no model."""

    def _gpu_memory(self) -> int:
        return 150 * 10**9

    def _model_of(self, cell: Cell) -> Model:
        raise Taken


def no_trace(cell: Cell) -> BatchTrace:
    streams = np.zeros((cell.model.layers, cell.batch, cell.model.kv_heads), np.int64)
    none = np.full((1, 1, cell.spec.budget), -1, np.int32)
    return BatchTrace(selections=none, before=none[0], stack=none[0, :, :0], streams=streams)


@pytest.mark.parametrize("at", [0, 1, 3, 20])
def test_a_line_with_the_plan_comes_first(at: int) -> None:
    told: list[str] = []
    cell = core_cells()[at]
    bench = Planning(Settings(), [cell], report=lambda *_: None, tell=told.append)
    with pytest.raises(Taken), bench._open(cell, no_trace(cell)):
        pytest.fail("a session without a model")
    (line,) = told
    assert line.startswith(f"{cell.key}: memory for {cell.batch} row")
    assert "of 150.00 GB (" in line
    assert ("pinned" in line) == cell.offloads
