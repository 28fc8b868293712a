"""What `make gpu` asks of a GPU beside tests/gpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import suite

BOTH = """
import pytest

@pytest.mark.gpu
def test_marked(): ...

@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): ...

def test_unmarked(): ...
"""


def test_tests_marked_outside_the_folder_are_asked_and_their_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\naddopts = --import-mode=importlib\n")
    for name, text in (
        ("gpu/test_own.py", BOTH), ("one/test_both.py", BOTH), ("one/test_none.py", "def test_other(): ..."),
        ("two/test_either.py", "\nfrom tests.gpu_env import DEVICE\n"),
    ):  # fmt: skip
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    both = "tests/one/test_both.py::"
    asked = ["tests/two/test_either.py", f"{both}test_marked", f"{both}test_many[1]", f"{both}test_many[2]"]
    assert suite.elsewhere() == asked
    (tmp_path / "tests" / "one" / "test_both.py").write_text(BOTH + "import no_such_module\n")
    with pytest.raises(RuntimeError, match="no_such_module"):
        suite.elsewhere()


def test_the_test_of_two_gpus_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "collected", list)  # files, not their tests: collecting those imports torch
    assert {"tests/kernels/test_on_tensors.py", "tests/distill/test_parallel.py"} <= set(suite.elsewhere())
