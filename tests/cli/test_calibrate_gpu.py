"""`sparda calibrate --device cuda`: without a GPU it fits what was measured, and refuses the rest with one line."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparda_core.cli.main import main
from sparda_core.cli.profile import origin
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile

Captured = pytest.CaptureFixture[str]
Refusal = Callable[..., str]
SAMPLES = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-calibration-h200.samples.json"
CALIBRATE = ("calibrate", "--device", "cuda")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A profile to be written, beside samples that are complete."""
    shutil.copy(SAMPLES, tmp_path / "mine.samples.json")
    return tmp_path / "mine.toml"


def test_complete_samples_give_the_profile_again_on_any_machine(out: Path, capsys: Captured) -> None:
    assert main([*CALIBRATE, "--out", str(out), "--resume"]) == 0
    told = capsys.readouterr().out
    assert "predicted against what was measured" in told
    assert f"use it with `sparda predict --profile {out}`" in told
    mine, shipped = load_profile(out), load_profile("h200")
    assert isinstance(mine, GpuProfile)
    assert isinstance(shipped, GpuProfile)
    assert (mine.uva, mine.memory, mine.calibration) == (shipped.uva, shipped.memory, shipped.calibration)
    assert main(["profile", "lint", str(out)]) == 0
    assert main(["predict", "--profile", str(out), "--batch", "4", "--context", "32768", "--json"]) == 0
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine.samples.json", "mine.toml"]


def test_what_is_told_as_json_holds_profile_checks_and_seconds(out: Path, capsys: Captured) -> None:
    assert main([*CALIBRATE, "--out", str(out), "--resume", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["profile"]["compute"]["sms"]["value"] == 132
    assert {check["what"] for check in told["checks"]} >= {"gather alone", "products beside copies"}
    assert told["seconds"]["gather"] > 0


def test_samples_that_are_there_are_not_overwritten_without_resume(out: Path, refusal: Refusal) -> None:
    before = SAMPLES.read_text()
    assert "exists: --resume goes on with it" in refusal(*CALIBRATE, "--out", out)
    assert (out.parent / "mine.samples.json").read_text() == before
    assert not out.exists()


def test_missing_sections_need_a_gpu(out: Path, refusal: Refusal) -> None:
    samples = json.loads(SAMPLES.read_text())
    del samples["sections"]["gather"]
    (out.parent / "mine.samples.json").write_text(json.dumps(samples))
    assert "finds no CUDA device here" in refusal(*CALIBRATE, "--out", out, "--resume")
    assert "finds no CUDA device here" in refusal(*CALIBRATE, "--out", out.parent / "other.toml")


@pytest.mark.parametrize("began", ["with --quick", "without --quick"])
def test_a_calibration_goes_on_as_it_began(
    out: Path, began: str, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    samples = json.loads(SAMPLES.read_text())
    del samples["sections"]["gather"]
    quick = began == "with --quick"
    samples["identity"]["quick"] = quick
    path = out.parent / "mine.samples.json"
    path.write_text(json.dumps(samples))
    before = path.read_bytes()
    about = {name: samples["identity"][name] for name in ("name", "sms", "driver", "cuda", "torch", "triton")}
    monkeypatch.setattr("sparda_core.bench.gpu_clock.has_gpu", lambda: True)
    monkeypatch.setattr("sparda_core.bench.gpu_calibration.run.identity_of", lambda sizes: about)
    said = refusal(*CALIBRATE, "--out", out, "--resume", *([] if quick else ["--quick"]))
    assert f"was measured {began}, and this run is to go on otherwise" in said
    about["driver"] = "1.2"
    assert "with driver='580.159.04', here it is '1.2'" in refusal(*CALIBRATE, "--out", out, "--resume")
    assert path.read_bytes() == before


def test_options_that_do_not_fit_are_refused(out: Path, refusal: Refusal) -> None:
    assert "must end in .toml" in refusal(*CALIBRATE, "--out", out.with_suffix(".txt"))
    assert "--again is of --resume" in refusal(*CALIBRATE, "--out", out, "--again", "gather")
    assert "device='tpu' cannot be calibrated; known: cpu, cuda" in refusal("calibrate", "--device", "tpu")
    assert "are of --device cuda" in refusal("calibrate", "--quick")
    (out.parent / "mine.samples.json").write_text("{")
    assert "is damaged" in refusal(*CALIBRATE, "--out", out, "--resume")


def test_show_names_the_age_of_a_profile(capsys: Captured) -> None:
    profile = load_profile("h200")
    (told,) = origin(profile, dt.date.fromisoformat(profile.date) + dt.timedelta(days=3))
    assert "(3 days old) on NVIDIA H200: driver 580.159.04" in told
    assert "by `sparda calibrate --device cuda --out h200.toml`" in told
    other = load_profile("l40s")
    assert origin(other, dt.date.fromisoformat(other.date) + dt.timedelta(days=1)) == [
        f"Numbers of {other.date} (1 day old)."
    ]
    assert main(["profile", "show", "h200"]) == 0
    assert "old)" in capsys.readouterr().out
