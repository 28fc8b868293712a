"""The nightly run: which files it takes, and what it makes of what pytest says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import nightly
from benchmarks.nightly import FAILED, PASSED, STOPPED, Outcome, main, outcome_of, property_files, read_outcomes
from sparda_core.errors import ConfigError

SAID = """
..s.                                                                     [100%]
tests/a.py::test_x:

  - during generate phase (0.10 seconds):
    - 100 passing, 0 failing, and 3 invalid test cases

tests/a.py::test_y:
    - 1 passing, 0 failing, and 0 invalid test cases

3 passed in 4.00s
"""
BROKEN = "FAILED tests/a.py::test_x - assert 1 == 2\n1 failed, 2 passed in 1.00s\n"


def test_files_of_property_tests_are_found_and_chosen_by_words() -> None:
    every = property_files()
    assert "tests/cases/test_files.py" in every
    assert "tests/cases/test_nightly.py" not in every
    without_hypothesis = ("agreement/test_agreement", "testing/test_every_runtime", "chaos/test_interrupts")
    assert {f"tests/{name}.py" for name in without_hypothesis} <= set(every)
    assert property_files(["cases/test_files"]) == ["tests/cases/test_files.py"]
    with pytest.raises(ConfigError, match="no file of property tests has nowhere"):
        property_files(["nowhere"])


def test_an_outcome_says_what_was_tried_and_what_failed() -> None:
    good = outcome_of("tests/a.py", 0, SAID, 4.0)
    assert (good.result, good.tests, good.examples, good.failures) == (PASSED, 3, 101, ())
    assert outcome_of("tests/a.py", None, "..", 20.0) == Outcome(file="tests/a.py", result=STOPPED, tests=2, took_s=20)
    assert outcome_of("tests/a.py", None, SAID, 20.0).result == PASSED, "all had passed, it was about to leave"
    assert outcome_of("tests/a.py", 5, "no tests ran", 1.0).result == PASSED
    bad = outcome_of("tests/a.py", 1, BROKEN, 1.0)
    assert (bad.result, bad.failures) == (FAILED, (("tests/a.py::test_x", "assert 1 == 2"),))
    assert outcome_of("tests/a.py", None, BROKEN, 20.0).result == FAILED
    assert outcome_of("tests/a.py", 2, "cannot be collected", 1.0).result == FAILED


def test_outcomes_are_kept_file_by_file_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(file: str, limit_s: float, examples: int) -> Outcome:
        ran.append(file)
        return Outcome(file=file, result=FAILED if "files" in file and len(ran) == 1 else PASSED, examples=7)

    monkeypatch.setattr(nightly, "run_file", run)
    out = tmp_path / "n.json"
    assert main(["cases/test_files", "--out", str(out), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 1
    assert main(["cases/test_files", "--out", str(out), "--resume"]) == 0
    assert main(["cases/test_files", "--out", str(out), "--resume"]) == 0
    assert len(ran) == 2, "what failed is run again, what passed is not"
    assert read_outcomes(out)["tests/cases/test_files.py"].examples == 7
    assert main(["--minutes", "0", "--out", str(out)]) == 2
    assert main(["--examples", "0", "--out", str(out)]) == 2
    out.write_text("[]")
    assert main(["cases/test_files", "--out", str(out), "--resume"]) == 2


def test_a_file_is_really_run_and_stopped_when_its_time_is_over() -> None:
    """A limit that nobody meets, so that it does not hang on this machine's speed."""
    assert nightly.run_file("tests/cases/test_nightly.py", 0.01).result == STOPPED


def test_the_page_says_what_the_night_that_is_kept_found() -> None:
    root = Path(__file__).parents[2]
    kept = json.loads((root / "benchmarks" / "results" / "2026-11-30-nightly.json").read_text(encoding="utf-8"))
    assert kept["failed"] == 0
    said = (root / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"{len(kept['files'])} files, {kept['passed']} of which ended with {kept['examples']:,} examples" in said
    assert f"{kept['stopped']} were stopped" in said
