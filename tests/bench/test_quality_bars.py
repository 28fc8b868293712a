"""The bars of quality, met and missed on rows made by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import quality_bars
from sparda_core.evaluate.study.report import make_report, read_report, write_report
from tests.evaluate.test_study_figures import ROWS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    study = {"model": "m", "dtype": "float32", "windows": {}, "config": {"window": 8, "first": 4, "task_tokens": 8}}
    machine = {"machine": {"cpu": "c", "cores": 1}}
    report = make_report(ROWS, [], study=study, provenance=machine, methods=[], seed=0)
    write_report(tmp_path, report)
    return tmp_path


def judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, object]:
    monkeypatch.setattr(sys, "argv", ["quality_bars.py", str(folder), "--json", *words])
    assert quality_bars.main() == 1  # most bars of these rows were not measured
    return {row["what"]: row["passed"] for row in json.loads(capsys.readouterr().out)}


def test_bars_are_met_missed_or_not_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged(folder, monkeypatch, capsys, "--shipped", "a.s0", "--coarse", "a")
    assert found["forecast:a.s0 / query: KL at 8"] is True  # 0.8 of query-driven's
    assert found["forecast:a.s0 - query: oracle recall at 8"] is True
    assert found["forecast:a.s0 - query: churn at 8"] is False
    assert found["forecast:a.s0 / query: KL at 16"] is None
    assert found["forecast:a (2 seeds): recall against query at 8"] is False  # 0.79
    assert found["fine / coarse: KL at 8"] is True


def test_recall_is_held_to_its_bar_above_chance_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = judged(folder, monkeypatch, capsys, "--coarse", "a.s0", "--lead2", "a")
    assert rows["forecast:a.s0: the same above chance at 8 (0.1000)"] is False
    assert rows["forecast:a.s0: the same above chance at 16"] is rows["lead 2: the same above chance at 16"] is None
    report = read_report(folder)
    bars = list(quality_bars.recall_bars(report, "forecast:a.s0", 8, 0.55, what="x"))
    assert [bar.passed for bar in bars] == [True, True]
    assert bars[1].wanted == "value >= 0.5"
    assert bars[1].found.startswith("0.7111 ")  # (0.74 - 0.1) / 0.9


def test_a_grid_that_was_not_measured_is_not_passed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged(folder, monkeypatch, capsys, "--grid", "forecast:a@4/4")
    assert set(found.values()) == {None}
