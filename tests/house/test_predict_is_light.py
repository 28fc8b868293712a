"""Prediction starts without torch, whatever else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

PREDICT = [
    *("predict", "--shape", "minicpm4.1-8b", "--profile", "h200", "--batch", "8", "--context", "131072"),
    *("--selector", "forecast", "--runtime", "offload-prefetch", "--churn", "0.03", "--json"),
]

pytestmark = pytest.mark.skipif(
    not (ROOT / "sparda_core" / "cli" / "main.py").exists(), reason="the command line is not written yet"
)


def loaded_by(*args: str, extra: Path | None = None) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run `sparda ARGS`; the finished process and the names of all modules it loaded.

    extra  a folder of further installed packages
    """
    env = dict(os.environ)
    if extra is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(extra), env.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sparda_core.cli.main", *args],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    names = {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
    }
    return done, names


def errors(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))


def test_the_look_at_loaded_modules_would_see_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import json.decoder"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert any(line.rpartition("|")[2].strip() == "json.decoder" for line in done.stderr.splitlines())


@pytest.mark.parametrize("args", [["--help"], ["predict", "--help"]], ids=" ".join)
def test_asking_for_help_loads_no_torch(args: list[str]) -> None:
    done, names = loaded_by(*args)
    assert done.returncode == 0, errors(done)
    assert "sparda_core" in names
    assert "torch" not in names


def test_a_prediction_loads_no_torch() -> None:
    done, names = loaded_by(*PREDICT)
    assert done.returncode == 0, errors(done)
    assert "sparda_core.plan" in names
    assert "torch" not in names


def test_a_prediction_loads_no_plug_in_that_nobody_asked_for(tmp_path: Path) -> None:
    (tmp_path / "heavy_plug_in.py").write_text("import torch\n\nclass Heavy:\n    name = 'heavy'\n")
    info = tmp_path / "heavy_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sparda.selectors]\nheavy = heavy_plug_in:Heavy\n")
    done, names = loaded_by(*PREDICT, extra=tmp_path)
    assert done.returncode == 0, errors(done)
    assert not names & {"heavy_plug_in", "torch"}
