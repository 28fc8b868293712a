"""`sparda validate`: drawing, listing, predicting anew; what is written and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparda_core.bench.validate import draw as drawing
from sparda_core.bench.validate.folder import Folder, read_run
from sparda_core.bench.validate.record import REPLAYED
from sparda_core.cli import validate_cells
from sparda_core.cli.main import main

DATA = Path(__file__).parent / "data"
PROFILE = str(DATA / "tiny-cpu-profile.toml")
Captured = pytest.CaptureFixture[str]


def stored(folder: Path) -> Path:
    """A folder with the records of a CPU, as a run leaves it."""
    for record in read_run(DATA / "tiny-cpu.json").records:
        Folder(folder).write(record)
    shutil.copy(DATA / "tiny-cpu.json", folder / "validation.json")
    return folder


def test_a_list_can_be_drawn_and_is_then_what_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(drawing, "predicted_ratio", lambda cell, profile: len(cell.key) % 7 / 3)
    out = tmp_path / "cells.json"
    assert main(["validate", "--draw", "3", "--out", str(out), "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["provenance"]["seed"] == 3
    assert main(["validate", "--list", "--cells", str(out), "--only", "copies", "CTAs"]) == 0
    shown = capsys.readouterr().out
    assert "16 CTAs" in shown
    assert "copy-engine" not in shown


def test_records_are_predicted_anew_and_provenance_of_measuring_stays(tmp_path: Path, capsys: Captured) -> None:
    folder, table = stored(tmp_path / "run"), tmp_path / "cells.csv"
    before = read_run(folder / "validation.json")
    options = ["--profile", PROFILE, "--csv", str(table), "--json"]
    assert main(["validate", "--predict-only", "--out", str(folder), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    after = read_run(folder / "validation.json")
    assert after.provenance["command"] == before.provenance["command"]
    assert after.provenance["predicted"]["sparda"]
    assert [record.cell for record in after.records] == [record.cell for record in before.records]
    assert all(record.predicted[REPLAYED].step_s for record in after.records)
    assert len(told["cells"]) == len(after.records) == len(list(csv.DictReader(table.read_text().splitlines())))
    assert {row["way"] for row in told["errors"]} == {"replayed"}
    assert main(["validate", "--predict-only", "--out", str(folder), "--profile", PROFILE]) == 0
    assert "Absolute error of tokens/s" in capsys.readouterr().out


def test_a_run_on_a_cpu_measures_predicts_and_says_when_the_machine_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    asked: list[Any] = []

    class Run:
        def __init__(self, settings: Any, folder: Path, **options: Any) -> None:
            asked.append(settings)

        def run(self) -> Any:
            return read_run(DATA / "tiny-cpu.json").records

    monkeypatch.setattr("sparda_core.bench.validate.measure_cpu.CpuRun", Run)
    monkeypatch.setattr("sparda_core.bench.provenance.busy_cores", lambda: 64.0)
    words = ["--device", "cpu", "--model", "tiny", "--rounds", "2", "--profile", PROFILE]
    assert main(["validate", *words, "--out", str(tmp_path / "run")]) == 0
    assert asked[0].model == "tiny"
    assert asked[0].steps == 2 * validate_cells.CPU_STEPS
    assert "64.0 of" in capsys.readouterr().out
    assert "measured" in read_run(tmp_path / "run" / "validation.json").provenance


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draw", "3"), "--out FILE"),
        (("--draw", "3", "--out", "no/such/folder/x.json"), "no/such/folder"),
        (("--only", "nothing-like-it"), "--list shows them"),
        (("--predict-only", "--out", "no-such-folder"), "no folder of records; measure cells into it first"),
        (("--cells", "no-such-file.json"), "no-such-file.json"),
        (("--device", "tpu"), "cuda"),
        (("--limit-s", "0"), ">= 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: tuple[str, ...], said: str, capsys: Captured) -> None:
    assert main(["validate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert any(one in err for one in said.split("|")), err
    assert err.count("\n") == 1
