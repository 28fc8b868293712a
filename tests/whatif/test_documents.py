"""The page of the command shows calls that work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparda_core.whatif.scenario import Scenario
from tests.whatif.fakes import usual

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()
SECTION = PAGE[PAGE.index("\n## whatif\n") : PAGE.index("\n## calibrate\n")]


def test_the_python_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "predict", usual)
    (block,) = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "commands.md", "exec"), names)  # noqa: S102 -- our own page
    assert len(names["study"].rows) == 4
    assert names["where"].crossings == ()


@pytest.mark.parametrize("line", re.findall(r"^sparda (whatif .*)$", SECTION, re.MULTILINE))
def test_every_command_of_the_page_runs(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sparda_core.cli.main import main

    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Scenario, "predict", usual)
    monkeypatch.chdir(tmp_path)
    words = line.split()
    jobs = words.index("--jobs") + 1 if "--jobs" in words else None
    if jobs is not None:  # workers would not know the formula
        words[jobs] = "1"
    else:
        words += ["--jobs", "1"]
    assert main(words) == 0
