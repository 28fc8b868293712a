"""A cell's plan is told before any of its memory is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparda_core.bench.decode.cell import Cell, core_cells, main_shape
from sparda_core.bench.decode.measure import Bench
from sparda_core.bench.decode.store import Settings
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.errors import ConfigError


class Planning(Bench):
    """Knows a GPU's size, and has a shape in the model's place: whoever opens a session is refused."""

    def __init__(self, told: list[str]) -> None:
        self._settings = Settings(warmup=16, steps=96, locality="hisparse", seed=0, gpu_memory_gib=None)
        self._tell = told.append
        self._device, self._offloaded, self._host = torch.device("cpu"), [], torch.empty(0, dtype=torch.uint8)

    def _model_of(self, cell: Cell) -> Any:
        return cell.model

    def _gpu_memory(self) -> int:
        return 150 * 10**9


def no_trace(cell: Cell) -> BatchTrace:
    shape = main_shape()
    streams = np.zeros((shape.layers, cell.batch, shape.kv_heads), np.int64)
    none = np.full((1, 1, 96), -1, np.int32)
    return BatchTrace(selections=none, before=none[0], stack=none[0, :, :0], streams=streams)


@pytest.mark.parametrize("at", [0, 1, 3, -1])
def test_a_line_with_the_plan_comes_first(at: int) -> None:
    told: list[str] = []
    cell = core_cells()[at]
    with pytest.raises(ConfigError, match="only a shape"), Planning(told)._open(cell, no_trace(cell)):
        pytest.fail("a session of a shape")
    (line,) = told
    assert line.startswith(f"{cell.key}: memory for {cell.batch} row")
    assert "of 150.00 GB (" in line
    assert ("pinned" in line) == cell.offloads
