"""`sparda calibrate --locality`: a recording in, a locality out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparda_core.cli.main import main
from sparda_core.selectors.recording import Recorder
from sparda_core.simulator.locality_file import load_locality
from sparda_core.simulator.locality_fit import draw
from tests.cli.conftest import Refusal
from tests.cli.stubs import SHAPE, SPEC


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "run.npz"
    drawn = draw(load_locality("infllm-v2"), SPEC, streams=8, tokens=9000, steps=60)
    recorder = Recorder(shape=SHAPE, spec=SPEC, selector="drawn")
    for chosen, at in zip(drawn.selections, drawn.positions, strict=True):
        recorder.add(at, chosen.reshape(4, 1, 2, -1))
    recorder.recording().save(path)
    return path


def test_the_table_shows_the_recording_beside_its_fit(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--locality", str(recording), "--out", str(tmp_path / "mine.toml")]) == 0
    out = capsys.readouterr().out
    assert "Misses / selected blocks" in out
    assert out.count("last-selection") == out.count("lru") == 3
    assert load_locality(tmp_path / "mine.toml").churn == pytest.approx(0.111, abs=0.003)


def test_the_json_holds_knobs_counts_and_misses(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--locality", str(recording), "--out", str(tmp_path / "mine.toml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "mine"
    assert told["fitted"]["recording"] == "run.npz"
    assert len(told["fitted"]["sha256"]) == 64
    assert np.isclose(told["churn"], told["fitted"]["newcomers"] / told["fitted"]["selected"])
    assert [(one["policy"], one["slots"]) for one in told["misses"]] == [
        (policy, slots) for policy in ("last-selection", "lru") for slots in (8, 16, 32)
    ]


def test_what_is_no_recording_is_refused_and_nothing_is_written(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    told = refusal("calibrate", "--locality", tmp_path / "bad.npz", "--out", tmp_path / "mine.toml")
    assert "not a sound recording" in told
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]


def test_a_locality_goes_into_a_toml_file(recording: Path, tmp_path: Path, refusal: Refusal) -> None:
    assert "must end in .toml" in refusal("calibrate", "--locality", recording, "--out", tmp_path / "mine.json")
    assert "cannot be read" in refusal("calibrate", "--locality", tmp_path / "none.npz", "--out", tmp_path / "a.toml")
    assert list(tmp_path.iterdir()) == []
