"""Cells that play a recording: the session selects what the recording says, and misses what its pools would."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core import shapes  # isort: skip
from sparda_core.bench.decode import cell as decode_cells
from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.store import Settings
from sparda_core.selectors.recording import Recorder
from sparda_core.simulator.locality import LocalityModel
from sparda_core.simulator.locality_fit import draw
from sparda_core.simulator.residency import Pools
from tests.gpu.bench.test_validation_run import SHAPE, SPEC, SmallBench

NARROW = attrs.evolve(SPEC, budget=5)
MODEL = LocalityModel(name="m", title="t", source="s", churn=0.3, reuse=((1.0, 1.0), (2.0, 0.3)), tail=1.0)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(shapes.SHAPES, "small", SHAPE)
    monkeypatch.setitem(decode_cells.SPECS, "small", SPEC)
    drawn = draw(MODEL, NARROW, streams=4, tokens=500, steps=10)
    recorder = Recorder(shape=SHAPE, spec=NARROW, selector="drawn")
    for chosen, at in zip(drawn.selections, drawn.positions, strict=True):
        recorder.add(at, chosen.reshape(2, 1, 2, -1))
    recorder.recording().save(tmp_path / "small.npz")
    return tmp_path / "small.npz"


def test_a_session_selects_and_misses_what_the_recording_says(recording: Path) -> None:
    cell = Cell(
        selector="forecast", runtime="offload-prefetch", batch=2, context=1000, policy="lru", slots=2.0, shape="small",
    )  # fmt: skip
    settings = Settings(warmup=1, recording=str(recording))
    bench = SmallBench(settings, [cell], report=lambda *_: None, spare=1, device=DEVICE)
    trace = bench.trace(cell)
    pools = Pools(streams=8, slots=12, policy="lru", blocks=40)
    pools.warm(trace.before, trace.stack)
    with bench, bench.filled(cell, trace) as session:
        for step in range(4):
            session.run(1, dict.fromkeys(session.rows, 1) if step == 0 else None)
            played = trace.selections[step][trace.streams]
            np.testing.assert_array_equal(session.last_selection(), played)
            missed = pools.play(trace.selections[step], np.full(8, -1))[trace.streams]
            np.testing.assert_array_equal(session.last_facts().misses[1:], missed[1:])
