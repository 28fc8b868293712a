"""`sparda validate --published`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sparda_core.cli.main import main
from sparda_core.published import report as study
from sparda_core.published.cells import Assumptions
from sparda_core.published.report import Report

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _made_already(monkeypatch: pytest.MonkeyPatch, plain: Report, fitted: Report) -> None:
    def made(assumed: Assumptions, **options: Any) -> Report:
        return fitted if options.get("fitted") else plain

    monkeypatch.setattr(study, "make_report", made)
    monkeypatch.setattr(study, "fit_launch", lambda assumed: fitted.assumed)


def test_the_table_has_a_line_a_cell_and_says_what_it_rests_on(capsys: Captured) -> None:
    assert main(["validate", "--published"]) == 0
    out = capsys.readouterr().out
    assert out.count("not published") == 2
    assert "arXiv 2606.04511" in out
    assert "no cell was measured by us" in out
    assert "is published as out of memory and is predicted to fit" in out


def test_the_document_holds_both_reports_with_assumptions_and_provenance(capsys: Captured) -> None:
    assert main(["validate", "--published", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["reports"]) == ["nothing fitted", "launch time fitted to one cell"]
    for told in found["reports"].values():
        assert len(told["cells"]) == 24
        assert told["assumed"]["churn"] == 0.111
        assert told["summary"]["pairs"] == 14
    assert found["provenance"]["profile"] == "h100-sxm"
    assert found["provenance"]["command"]


def test_files_hold_what_was_asked_for(tmp_path: Path, capsys: Captured) -> None:
    names = {"--csv": "cells.csv", "--out": "all.json", "--figure": "table.png"}
    words = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["validate", "--published", "--no-fit", *words]) == 0
    capsys.readouterr()
    with (tmp_path / "cells.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 24
    assert rows[0]["published_tokens_per_s"] == "189.5"
    assert len(json.loads((tmp_path / "all.json").read_text())["reports"]) == 1
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_a_launch_time_of_ones_own_leaves_nothing_to_fit(capsys: Captured) -> None:
    assert main(["validate", "--published", "--json", "--launch-us", "12"]) == 0
    assert list(json.loads(capsys.readouterr().out)["reports"]) == ["nothing fitted"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--published"),
        (("--published", "--churn", "1.5"), "between 0 and 1"),
        (("--published", "--launch-us", "0"), ">="),
        (("--published", "--csv", "no/such/folder/x.csv"), "no/such/folder"),
        (("--published", "--profle", "h200"), "did you mean --profile"),
        (("--published", "--profile", "h10-sxm"), "h100-sxm"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: tuple[str, ...], said: str, capsys: Captured) -> None:
    assert main(["validate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
