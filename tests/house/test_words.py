"""What the repository says: nothing of one machine, nothing that the code does not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparda_core
from tests.house.tree import ROOT, pyproject, tracked_files

DOCS = tuple(path for path in tracked_files() if path.suffix == ".md")
TEXT_SUFFIXES = {"", ".cfg", ".csv", ".ini", ".json", ".jsonl", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}

# Written so that no pattern finds itself here.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?:^|[^\w.~-])/(?:work|tmp|root|home|Users|farm)/\w"),
    "a host of a package registry": re.compile(r"pypi[.]org|pythonhosted[.]org|(?:deb|security)[.]debian[.]org"),
    "a byline that git keeps already": re.compile(r"co-authored[-]by", re.IGNORECASE),
}


def is_text(path: Path) -> bool:
    return path.suffix in TEXT_SUFFIXES and not (ROOT / path).is_symlink() and path.name != "LICENSE"


def test_no_file_speaks_of_one_machine_or_registry() -> None:
    wrong = [
        f"{path}:{number} {what}: {line.strip()[:100]}"
        for path in tracked_files()
        if is_text(path)
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_look_for_forbidden_words_finds_them() -> None:
    sample = "see /" + "tmp/a, https://pypi" + ".org/x and Co-Authored" + "-By: x"
    assert all(pattern.search(sample) for pattern in FORBIDDEN.values())


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sparda_core.__version__ in headings


@pytest.mark.parametrize("path", DOCS, ids=str)
def test_every_make_target_in_the_documents_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`|\$ )make (?:[A-Z]+=\S+ )*([a-z]+)", (ROOT / path).read_text(), re.MULTILINE))
    assert named <= targets, f"the Makefile has no {sorted(named - targets)}"


def test_the_readme_shows_both_commands_on_its_first_screen() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in first_screen}


@pytest.mark.parametrize("path", DOCS, ids=str)
def test_every_link_inside_the_documents_leads_somewhere(path: Path) -> None:
    text = (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / path).parent / target).exists(), f"{path} links to {target}, which is not there"


def test_the_index_of_the_documents_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {path.name for path in DOCS if path.parts[0] == "docs" and path.name != "README.md"}
    assert pages
    assert not [page for page in pages if f"({page})" not in index]


@pytest.mark.parametrize("path", DOCS, ids=str)
def test_every_method_named_in_a_documents_option_is_registered(path: Path) -> None:
    points = pyproject()["project"]["entry-points"]
    for kind in ("selector", "runtime"):
        named = set(re.findall(rf"--{kind} ([a-z][a-z-]*)", (ROOT / path).read_text()))
        assert named <= points[f"sparda.{kind}s"].keys(), f"{path} names {named} after --{kind}"
