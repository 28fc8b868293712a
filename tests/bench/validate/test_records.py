"""Records of a validation: what is written is read back, and what is no record is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.compact import CompactFacts
from sparda_core.bench.validate.folder import Folder, Run, read_run, write_run
from sparda_core.bench.validate.record import Measured, Predicted, Record, read_record, stratum_of, write_record
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.plan import Lane
from sparda_core.spans import Span, Timeline

CELL = ValidationCell(selector="forecast", runtime="offload-prefetch", batch=4, context=4096)
FACTS = CompactFacts(
    layers=3, batch=4, kv_heads=2, budget=96, slots=96, lengths=(4097, 4098), selected=(64, 64), opened=(0, 1),
    misses=((0, 8, 5), (0, 3, 24)),
)  # fmt: skip
MEASURED = Measured(rounds_s=((0.004, 0.006), (0.005, 0.0052)), facts=FACTS, confirmed=2, block_bytes=32768.0)
RECORD = Record(
    cell=CELL, tier="axis", stratum="link", ratio=1.7, groups=("copies b4 4K",), measured=MEASURED,
    predicted={"drawn": Predicted(step_s=0.0051, profile="h200", by_kind={"mlp": 0.003})},
    identity={"machine": "a GPU"},
)  # fmt: skip


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "one.json", RECORD)
    assert read_record(tmp_path / "one.json") == RECORD
    bare = attrs.evolve(RECORD, measured=None, refused="it does not fit", predicted={})
    write_record(tmp_path / "one.json", bare)
    assert read_record(tmp_path / "one.json") == bare


def test_figures_of_a_measurement_are_medians_over_rounds() -> None:
    assert MEASURED.step_s == pytest.approx(0.0051)
    assert MEASURED.round_medians_s == pytest.approx((0.005, 0.0051))
    assert MEASURED.repeatability == pytest.approx(0.02)
    assert attrs.evolve(MEASURED, rounds_s=((0.004,),)).repeatability is None
    assert MEASURED.moved_bytes == 20 * 32768.0
    assert RECORD.tokens_per_s == pytest.approx(4 / 0.0051)
    assert RECORD.error("drawn") == pytest.approx(0.0)
    assert RECORD.error("replayed") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.pop("tier"), "tier"),
        (lambda plain: plain.update(tier="best"), "known: interpolated"),
        (lambda plain: plain.update(format=2), "must be 1"),
        (lambda plain: plain["cell"].update(colour="red"), "colour"),
        (lambda plain: plain["measured"].update(rounds_s=[]), "round"),
        (lambda plain: plain["measured"]["facts"]["misses"].pop(), "1 steps of misses"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, change: object, said: str) -> None:
    plain = json.loads(json.dumps(RECORD.to_plain()))
    change(plain)  # type: ignore[operator]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(RecordingError, match=said) as wrong:
        read_record(path)
    assert "one.json" in str(wrong.value)


def test_a_run_is_read_from_its_folder_and_from_its_document(tmp_path: Path) -> None:
    folder, other = Folder(tmp_path / "run"), attrs.evolve(RECORD, cell=attrs.evolve(CELL, batch=8))
    for record in (other, RECORD):
        folder.write(record)
    assert folder.read(CELL) == RECORD
    assert folder.read(attrs.evolve(CELL, batch=9)) is None
    assert [record.cell.batch for record in read_run(tmp_path / "run").records] == [4, 8]
    write_run(tmp_path / "all.json", Run(records=[other, RECORD], provenance={"seed": 1}))
    found = read_run(tmp_path / "all.json")
    assert found.records == (other, RECORD)
    assert found.provenance == {"seed": 1}
    assert found.groups == ("copies b4 4K",)
    assert len(found.group("copies b4 4K")) == 2


def test_a_folder_without_records_and_a_broken_document_say_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no record"):
        read_run(tmp_path)
    (tmp_path / "all.json").write_text("{}")
    with pytest.raises(RecordingError, match=r"all\.json is no validation .*; name another file"):
        read_run(tmp_path / "all.json")
    Folder(tmp_path).write(RECORD)
    with pytest.raises(RecordingError, match=r"all\.json is no validation .*; delete it: the records lie in .*cells"):
        read_run(tmp_path / "all.json")
    (tmp_path / "all.json").unlink()
    assert read_run(tmp_path).records == (RECORD,)


def test_a_timeline_lies_beside_its_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    spans = [Span(name="mlp/0", kind="mlp", layer=0, lane=Lane.COMPUTE, start_ns=3, end_ns=9)]
    timeline = Timeline(label="measured", spans=tuple(spans))
    name = folder.write_timeline(CELL, timeline)
    assert folder.timeline(RECORD) is None
    with_it = attrs.evolve(RECORD, measured=attrs.evolve(MEASURED, timeline=name))
    assert folder.timeline(with_it) == timeline
    (tmp_path / "timelines" / name).write_text("[]")
    with pytest.raises(RecordingError, match="no timeline"):
        folder.timeline(with_it)
    (tmp_path / "timelines" / name).unlink()
    with pytest.raises(RecordingError, match=r"is missing, the timeline of .*; measure its cell again"):
        folder.timeline(with_it)


def test_cells_have_names_that_tell_them_apart() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"ctas": 3}, {"in_flight_kib": 16}, {"lead": 2}, {"block": 128}, {"background_gb_s": 10.0},
        {"engine": "copy-engine"},
        {"churn": 0.2}, {"slots": 2.0, "policy": "lru"}, {"link_gb_s": 0.5}, {"launches": "eager"}, {"context": 5000},
        {"shape": "nosa-8b"}, {"runtime": "resident"},
    )  # fmt: skip
    cells = [CELL, *(attrs.evolve(CELL, **change) for change in changes)]
    assert len({cell.key for cell in cells}) == len({cell.id for cell in cells}) == len(cells)
    assert ValidationCell.of(CELL.to_plain()) == CELL


@pytest.mark.parametrize(
    ("change", "said"),
    [({"batch": 0}, "batch=0"), ({"device": "tpu"}, "known: cuda"), ({"churn": 2.0}, "churn"),
     ({"slots": 0.5}, "slots"), ({"ctas": 0}, "ctas"), ({"background_gb_s": -1.0}, "background")],
)  # fmt: skip
def test_a_cell_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        attrs.evolve(CELL, **change)


def test_strata_are_told_by_one_and_a_half_times() -> None:
    assert [stratum_of(ratio) for ratio in (0.0, 0.66, 0.67, 1.5, 1.51)] == [
        "compute", "compute", "balanced", "balanced", "link",
    ]  # fmt: skip
