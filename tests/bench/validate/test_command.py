"""`sparda validate`: drawing, listing, predicting anew; what is written and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.bench.validate import draw as drawing
from sparda_core.bench.validate.folder import Folder, read_run
from sparda_core.bench.validate.record import REPLAYED
from sparda_core.bench.verdict.run import read_source
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


def test_both_lists_that_come_along_have_names(capsys: Captured) -> None:
    for name, cells in (("shipped", 62), ("second", 36)):
        assert main(["validate", "--list", "--cells", name, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["cells"]) == cells


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
    ("profile", "said"),
    [("h20x0", "'h20x0' is unknown; did you mean 'h200'?"), ("h200", "is of a GPU, and the cells are of a CPU"),
     (None, "no cpu-profile.toml beside them")],
)  # fmt: skip
@pytest.mark.parametrize("way", ["--predict-only", "--report"])
def test_a_profile_that_does_not_fit_is_refused_and_leaves_every_record_as_it_is(
    tmp_path: Path, way: str, profile: str | None, said: str, capsys: Captured
) -> None:
    folder = stored(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    words = ["--predict-only", "--out", str(folder)] if way == "--predict-only" else ["--report", str(folder)]
    assert main(["validate", *words, *(["--profile", profile] if profile else [])]) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


class CutRun:
    """Stands for a run on a GPU that Ctrl-C ends after its first cell."""

    def __init__(self, listed: Any, settings: Any, folder: Path, **options: Any) -> None:
        self.so_far, self._folder = tuple(listed), Folder(folder)

    def run(self) -> Any:
        blank = read_run(DATA / "tiny-cpu.json").records[0].measured
        assert blank is not None
        self._folder.write(attrs.evolve(self.so_far[0], measured=attrs.evolve(blank, timeline=None)))
        raise KeyboardInterrupt


def test_cells_of_a_run_that_is_cut_are_kept_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparda_core.bench.validate.measure_gpu.GpuRun", CutRun)
    folder = tmp_path / "run"
    assert main(["validate", "--only", "copies", "--out", str(folder)]) == 130
    told = read_run(folder / "validation.json")
    assert told.provenance["measured"]["command"]
    assert told.provenance["cells"]["seed"] == 2026
    source = read_source(folder).run
    assert [record.measured is not None for record in source.records] == [True]
    assert source.provenance == told.provenance


def test_a_profile_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sparda_core.bench.validate.measure_gpu.GpuRun", CutRun)
    for profile, said in ((PROFILE, "is of a CPU, and the cells are of a GPU"), ("h20x0", "is unknown")):
        assert main(["validate", "--profile", profile, "--out", "unused"]) == 2
        assert said in capsys.readouterr().err
        assert main(["validate", "--draw", "3", "--profile", profile, "--out", "unused.json"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draw", "3"), "--out FILE"),
        (("--timelines", "forecast prefetch b24 64K churn 10% last-selection x1 1 CTA"), "did you mean"),
        (("--list", "--cells", "empty.json"), "empty.json holds no cell"),
        (("--report", "empty.json", "--no-figures"), "empty.json holds no cell"),
        (("--draw", "3", "--out", "no/such/folder/x.json"), "no/such/folder"),
        (("--only", "nothing-like-it"), "--list shows them"),
        (("--predict-only", "--out", "no-such-folder"), "no folder of records; measure cells into it first"),
        (("--cells", "no-such-file.json"), "no-such-file.json"),
        (("--device", "tpu"), "cuda"),
        (("--limit-s", "0"), ">= 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text('{"format": 1, "provenance": {}, "records": []}')
    assert main(["validate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert any(one in err for one in said.split("|")), err
    assert err.count("\n") == 1
