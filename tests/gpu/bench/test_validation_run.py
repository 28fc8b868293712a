"""Cells measured for a validation: sessions in turns, facts of exactly the timed steps, runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core import shapes  # isort: skip
from sparda_core.bench.decode import cell as decode_cells
from sparda_core.bench.decode.measure import Bench
from sparda_core.bench.decode.timeline import BEFORE
from sparda_core.bench.validate import measure_gpu
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.folder import read_run
from sparda_core.bench.validate.measure_gpu import SPARE, GpuRun, GpuSettings, decode_cell
from sparda_core.bench.validate.played import PlayedTrace, differs
from sparda_core.bench.validate.record import Record
from sparda_core.compose import Combination
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.spans import Timeline

SHAPE = ModelShape(
    name="small", layers=2, hidden=64, ffn=96, q_heads=4, kv_heads=2, head_dim=32, vocab=61, context=2048
)
SPEC = BlockSpec(block=64, window=32, stride=16, sink=1, local=1, budget=6)
SETTINGS = GpuSettings(warmup=2, rounds=2, round_steps=1)
EARLY = ValidationCell(
    selector="forecast", runtime="offload-prefetch", batch=1, context=640, churn=0.2, budget=6, local=1, shape="small"
)


class SmallBench(Bench):
    """Sessions of this process's device, on a CPU of interpreted kernels."""

    refuse: str = ""

    def _session(self, pair: Combination, **options: Any) -> GpuSession:
        if pair.runtime.name == self.refuse:
            raise CapacityError(tier="device", need=2, free=1, unit="bytes", hint="take less")
        return GpuSession(
            pair.model, runtime=pair.runtime, selector=pair.selector, spec=pair.spec, options=GpuOptions.of(**options)
        )


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.SHAPES, "small", SHAPE)
    monkeypatch.setitem(decode_cells.SPECS, "small", SPEC)
    monkeypatch.setattr(measure_gpu, "CONFIRMED", 1)


def listed(**changes: Any) -> Record:
    return Record(cell=attrs.evolve(EARLY, **changes), tier="interpolated", stratum="balanced", groups=("one",))


def run_of(
    records: list[Record], folder: Path, settings: GpuSettings = SETTINGS, *, refuse: str = "", resume: bool = True
) -> GpuRun:
    cells = [decode_cell(record.cell) for record in records]
    bench = SmallBench(settings.bench(), cells, report=lambda *_: None, spare=SPARE, device=DEVICE)
    bench.refuse = refuse
    return GpuRun(
        records, settings, folder, report=lambda *_: None, bench=bench, machine="a device", resume=resume
    )  # fmt: skip


def test_cells_are_measured_in_turns_and_their_facts_are_the_devices(tmp_path: Path) -> None:
    records = [listed(), listed(runtime="offload-sync", slots=1.5, policy="lru"), listed(runtime="resident")]
    found = run_of(records, tmp_path).run()
    assert [record.cell for record in found] == [record.cell for record in records]
    early, sync, resident = (record.measured for record in found)
    assert early is not None
    assert sync is not None
    assert resident is not None
    for measured in (early, sync, resident):
        assert [len(part) for part in measured.rounds_s] == [1, 1]
        assert measured.facts.lengths == (643, 644)
        assert measured.confirmed == 3
    assert early.facts.mean_misses > sync.facts.mean_misses >= resident.facts.mean_misses == 0
    assert all(row[0] == 0 for row in early.facts.misses), "the first layer is resident where a lead is known"
    assert early.block_bytes == 2 * 64 * 32 * (2 if DEVICE.type == "cuda" else 4)
    assert {record.cell.key for record in read_run(tmp_path).records} == {record.cell.key for record in records}


def test_facts_of_a_timeline_are_those_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the profiler: as many steps as pass before it, then those of the timeline, whose counts are read."""
    counted: list[list[int]] = []

    def traced(session: GpuSession, *, steps: int) -> Timeline:
        session.run(BEFORE)
        for _ in range(steps):
            session.run(1)
            counted.append(np.asarray(session.last_facts().misses).sum((1, 2)).tolist())
        return Timeline(label="stood for", spans=[])

    monkeypatch.setattr(measure_gpu, "graph_timeline", traced)
    one = listed(churn=0.4)
    (found,) = run_of([one], tmp_path, attrs.evolve(SETTINGS, timelines=(one.cell.key,))).run()
    assert found.measured is not None
    assert found.measured.timeline_facts is not None
    assert [list(step) for step in found.measured.timeline_facts.misses] == counted
    assert len({tuple(step) for step in counted}) > 1, "steps that miss alike would prove nothing"
    assert found.measured.timeline_facts.lengths[0] == found.measured.facts.lengths[-1] + 1 + BEFORE + 1


def test_a_run_that_goes_on_measures_only_what_is_missing_and_takes_the_new_reasons(tmp_path: Path) -> None:
    first = run_of([listed()], tmp_path).run()
    again = run_of([attrs.evolve(listed(), groups=("two",)), listed(churn=0.1)], tmp_path)
    assert len(again._kept) == 1
    found = again.run()
    assert found[0].measured == first[0].measured
    assert found[0].groups == ("two",)
    assert found[1].measured is not None
    assert not run_of([listed()], tmp_path, attrs.evolve(SETTINGS, round_steps=2))._kept
    assert not run_of([listed()], tmp_path, resume=False)._kept


def test_a_cell_that_does_not_fit_is_a_row_and_the_others_are_measured(tmp_path: Path) -> None:
    found = run_of([listed(runtime="resident"), listed()], tmp_path, refuse="resident").run()
    assert "take less" in str(found[0].refused)
    assert not found[0].failed
    assert found[1].measured is not None


def test_a_count_that_is_not_the_played_one_fails_the_cell_and_another_run_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PlayedTrace, "misses", lambda self, step: [0, 0])
        (found,) = run_of([listed()], tmp_path).run()
    assert found.failed
    assert "missed another number of blocks than played" in str(found.refused)
    (found,) = run_of([listed()], tmp_path).run()
    assert found.measured is not None


def test_no_cell_is_begun_after_the_limit(tmp_path: Path) -> None:
    (found,) = run_of([listed()], tmp_path, attrs.evolve(SETTINGS, limit_s=-1.0)).run()
    assert found.measured is None
    assert found.refused is None


def test_counts_that_differ_are_told_by_layer() -> None:
    assert differs(np.ones((2, 1, 3)), [3, 3]) is None
    assert differs(np.ones((2, 1, 3)), [3, 4]) == (
        "1 layers missed another number of blocks than played, layer 1 3 for 4"
    )


def test_a_setting_that_no_session_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="launches"):
        listed(launches="sometimes")
