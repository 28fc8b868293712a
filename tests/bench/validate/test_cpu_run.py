"""Cells of this machine's CPU: measured with a random model, predicted from their own facts, gone on with."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from sparda_core.bench.calibrate_cpu import profile_of
from sparda_core.bench.validate import measure_cpu
from sparda_core.bench.validate.cpu_cells import cpu_loads
from sparda_core.bench.validate.folder import Folder, read_run
from sparda_core.bench.validate.measure_cpu import TINY, CpuRun, CpuSettings, random_reading
from sparda_core.bench.validate.record import REPLAYED, Record
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.cpu_samples import CpuSamples, Sample
from sparda_core.simulator.profile import Profile
from sparda_core.simulator.profile_file import load_profile
from sparda_core.work import Work

PROFILE = Path(__file__).parent / "data" / "tiny-cpu-profile.toml"
SETTINGS = CpuSettings(model=TINY, tokens=1400, steps=2, rounds=1, warmup=1)


ONE = Sample(key="decode/forecast:attend", work=Work(flops=1e6, pieces=3, repeated=True), seconds=1e-4, busy=0.5)


@pytest.fixture(autouse=True)
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[CpuSamples]:
    """The profile of another day: what is fitted is not the matter here. Returns what profiles were asked of."""
    asked: list[CpuSamples] = []

    def profile(samples: CpuSamples, *, threads: int | None) -> Profile:
        assert threads is None
        asked.append(samples)
        return load_profile(PROFILE)

    def calibrate(self: CpuRun) -> CpuSamples:
        return CpuSamples(alone=(ONE,), between_s=(float(len(asked)),))

    monkeypatch.setattr(CpuRun, "_calibrate", calibrate)
    monkeypatch.setattr(measure_cpu, "profile_of", profile)
    monkeypatch.setattr(measure_cpu, "TINY_SHAPE", attrs.evolve(measure_cpu.TINY_SHAPE, layers=2, hidden=64, ffn=96))
    monkeypatch.setattr(measure_cpu, "choose_link", lambda *_: {"bytes_per_s": 5e7})
    return asked


def run(folder: Path, settings: CpuSettings = SETTINGS, **options: bool) -> tuple[Record, ...]:
    return CpuRun(settings, folder, report=lambda *_: None, **options).run()


def test_every_cell_is_measured_and_replayed_and_a_second_run_keeps_them(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert len(found) == 11
    assert {record.tier for record in found} == {"interpolated", "combination", "axis", "slope"}
    for record in found:
        assert record.measured is not None
        assert record.measured.facts.steps == record.measured.confirmed == 2
        assert record.predicted[REPLAYED].step_s
        assert (record.measured.moved_bytes > 0) == record.cell.offloads
        link = 0.025 if record.tier == "slope" else 0.05
        assert record.cell.link_gb_s == (link if record.cell.offloads else None)
    traced = [record for record in found if record.tier == "interpolated"]
    for record in traced:
        timeline = Folder(tmp_path).timeline(record)
        assert timeline is not None
        assert record.measured is not None
        assert record.measured.timeline_facts is not None
        assert record.measured.timeline_facts.steps == len({span.step for span in timeline.spans})
    assert run(tmp_path) == found
    assert {record.cell.key for record in read_run(tmp_path).records} == {record.cell.key for record in found}


def test_the_profile_is_of_the_same_minutes_as_the_cells(tmp_path: Path, fitted: list[CpuSamples]) -> None:
    """A pass before every load and one behind the last; a run that goes on measures none of them again."""
    run(tmp_path)
    assert [len(samples.alone) for samples in fitted] == [1, 2, 3, 4, 5]
    assert fitted[-1] == CpuSamples(alone=(ONE,) * 5, between_s=(0.0, 1.0, 2.0, 3.0, 4.0))
    before = fitted[-1]
    run(tmp_path)
    assert fitted[-1] == before


def test_samples_added_up_give_the_profile_of_all_of_them() -> None:
    slow, quick = (
        CpuSamples(alone=(attrs.evolve(ONE, seconds=took, busy=0.0),) * 3, between_s=(took,)) for took in (3e-4, 1e-4)
    )
    first, both, last = (profile_of(samples).costs[ONE.key] for samples in (slow, slow + quick, quick))
    assert first.seconds(ONE.work) == pytest.approx(3e-4)
    assert first.seconds(ONE.work) > both.seconds(ONE.work) > last.seconds(ONE.work)
    assert both.samples == 6


def test_loads_lie_between_and_beyond_what_is_calibrated() -> None:
    loads = cpu_loads(tokens=2048, room=20, link_gb_s=0.5)
    cells = [cell for load in loads for cell in load.cells(BlockSpec(), "smollm2-135m")]
    assert len({cell.id for cell in cells}) == len(cells) == 11
    assert {load.tier: (load.context, load.batch, load.link_gb_s) for load in loads} == {
        "interpolated": (1536, 1, 0.5), "combination": (1536, 1, 0.5), "axis": (2028, 2, 0.5), "slope": (1536, 1, 0.25),
    }  # fmt: skip


def test_a_model_that_is_not_there_and_a_text_too_short_are_refused(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, WeightsError, OSError)):
        run(tmp_path, attrs.evolve(SETTINGS, model="no/such/model"))
    assert len(random_reading(7, 5).tokens) == 7
