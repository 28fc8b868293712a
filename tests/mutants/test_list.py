"""Every mutant still applies, and the page shows what was kept of the last run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.mutants.__main__ import OUT
from benchmarks.mutants.declared import LIST, Mutant, chosen, copy_tree, read_mutants
from benchmarks.mutants.kept import PAGE, page, read_outcomes, write_outcomes
from benchmarks.mutants.runs import BROKEN, CAUGHT, HUNG, MISSED, Copy, Outcome
from sparda_core.errors import ConfigError
from sparda_core.files import parse_json
from tests.house.tree import ROOT

MUTANTS = read_mutants(ROOT / LIST)
NAMES = {mutant.name: mutant for mutant in MUTANTS}


def test_there_are_mutants_of_every_part() -> None:
    assert len(MUTANTS) >= 30
    parts = {mutant.file.split("/")[1].removesuffix(".py") for mutant in MUTANTS}
    assert parts >= {"kernels", "runtimes", "selectors", "models", "plan", "simulator", "distill"}


@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_replaces_one_piece_of_text_and_names_tests_that_are_there(name: str) -> None:
    mutant = NAMES[name]
    text = mutant.applied(ROOT)
    assert text != (ROOT / mutant.file).read_text(encoding="utf-8")
    compile(text, mutant.file, "exec")  # a bug, not a slip of the pen
    mutant.check_tests(ROOT)


def test_the_page_shows_every_mutant_with_the_outcome_that_was_kept() -> None:
    document = parse_json(OUT.read_bytes())
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(MUTANTS, document), "python -m benchmarks.mutants --page"
    results = {name: outcome.result for name, outcome in read_outcomes(OUT).items()}
    assert set(results) == set(NAMES), "python -m benchmarks.mutants --resume --page"
    assert not [name for name, result in results.items() if result not in (CAUGHT, HUNG)]


MUTANT = Mutant(name="m", bug="b", file="a.py", was="x = 1", now="x = 2", tests=("test_a.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "benchmarks" / "mutants", tmp_path / "benchmarks" / "mutants")
    (tmp_path / "sparda_core").mkdir()
    (tmp_path / "sparda_core" / "__init__.py").touch()
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "test_a.py").write_text("def test_x():\n    import a\n    assert a.x == 1\n")
    (tmp_path / "test_y.py").write_text("def test_y():\n    import a\n    assert a.y == 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"was": "x = 3"}, "stale: its text stands 0 times"), ({"was": " = 1"}, "stale: its text stands 2 times"),
        ({"file": "b.py"}, "b.py is not there"),
    ],
)  # fmt: skip
def test_a_mutant_whose_text_does_not_stand_there_once_is_refused(
    changes: dict[str, Any], says: str, tree: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        attrs.evolve(MUTANT, **changes).applied(tree)


@pytest.mark.parametrize("test", ["test_b.py", "test_a.py::test_z"])
def test_a_test_that_is_not_there_is_refused(test: str, tree: Path) -> None:
    MUTANT.check_tests(tree)
    with pytest.raises(ConfigError, match="is not there; name one that is"):
        attrs.evolve(MUTANT, tests=(test,)).check_tests(tree)


def test_lists_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    given = attrs.asdict(MUTANT, filter=lambda field, _: field.name not in ("tests", "limit_s"))
    entry = "[[mutant]]\n" + "".join(f"{key} = {value!r}\n" for key, value in given.items())
    (tmp_path / "list.toml").write_text(entry)
    with pytest.raises(ConfigError, match="an entry needs name, bug"):
        read_mutants(tmp_path / "list.toml")
    (tmp_path / "list.toml").write_text(2 * (entry + 'tests = ["test_a.py"]\n'))
    with pytest.raises(ConfigError, match="m is there twice"):
        read_mutants(tmp_path / "list.toml")
    with pytest.raises(ConfigError, match="no mutant is called n"):
        chosen((MUTANT,), ["n"])


def test_a_bug_is_noticed_missed_or_breaks_its_tests_and_is_taken_out_again(tree: Path) -> None:
    copy, before = Copy(tree, limit_s=60), (tree / "a.py").stat().st_mtime_ns
    copy.check()
    try:
        assert copy.passes(("test_a.py", "test_y.py"))[0]
        caught = copy.run(MUTANT, "d")
        assert (caught.result, caught.by) == (CAUGHT, "test_a.py::test_x")
        assert copy.run(attrs.evolve(MUTANT, tests=("test_y.py",)), "d").result == MISSED
        assert copy.run(attrs.evolve(MUTANT, tests=("absent.py",)), "d").result == BROKEN
        died = copy.run(attrs.evolve(MUTANT, now="import os; os._exit(9)"), "d")
        assert died.result == BROKEN, "a test that takes the process with it says nothing"
        assert copy.run(MUTANT, "d").result == CAUGHT
        assert (tree / "a.py").read_text() == "x = 1\ny = 1\n"
        assert (tree / "a.py").stat().st_mtime_ns == before
    finally:
        copy.close()


def test_tests_that_do_not_end_are_ended_and_the_next_ones_run(tree: Path) -> None:
    copy = Copy(tree, limit_s=60)
    try:
        assert copy.run(MUTANT, "d").result == CAUGHT
        assert copy.run(attrs.evolve(MUTANT, now="while True: pass", limit_s=2), "d").result == HUNG
        assert copy.run(MUTANT, "d").result == CAUGHT
    finally:
        copy.close()


def test_code_that_does_not_lie_in_the_copy_is_refused(tmp_path: Path, tree: Path) -> None:
    (tree / "sparda_core" / "__init__.py").unlink()
    (tree / "sparda_core").rmdir()
    with pytest.raises(ConfigError, match="not the copy in"):
        Copy(tree, limit_s=60).check()


def test_outcomes_are_kept_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert read_outcomes(path) == {}
    outcome = Outcome(name="m", result=CAUGHT, by="test_a.py::test_x", took_s=1.5, digest="d")
    write_outcomes(path, [outcome], {"date": "2026-11-30"})
    assert read_outcomes(path) == {"m": outcome}
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not what this script wrote"):
        read_outcomes(path)


def test_what_changes_an_outcome_changes_its_digest(tree: Path) -> None:
    first = MUTANT.digest(tree)
    assert attrs.evolve(MUTANT, now="x = 3").digest(tree) != first
    (tree / "test_a.py").write_text("def test_x():\n    pass\n")
    assert MUTANT.digest(tree) != first


def test_a_copy_has_what_tests_need(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy_tree(tmp_path / "copy", tree)
    assert (tmp_path / "copy" / "sparda_core" / "__init__.py").is_file()
