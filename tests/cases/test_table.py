"""The table of docs/cases.md: every case has its row, and every test that a row names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAGS = (
    *(f"A{n}" for n in (1, 2, 3, 5, 7, 8, 9, 11, 12, 15, 16, 17, 19)),
    *(f"B{n}" for n in (1, 2, 3, 5, 7, 10, 12, 13, 14, 16, 17, 21)),
    *(f"C{n}" for n in (1, 2, 4, 5, 6, 13, 14, 16, 17, 19, 21)),
    *(f"D{n}" for n in (1, 2, 4, 6)),
    *(f"E{n}" for n in (1, 3, 4, 5, 7, 8)),
    *(f"F{n}" for n in (1, 2, 5, 6)),
)
NAMED = re.compile(r"`((?:tests/[\w/]+\.py))::(\w+)`")


def rows(page: str = "cases.md") -> dict[str, str]:
    """A line of the page's tables by its first cell."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {line.split("|")[1].strip(): line for line in text.splitlines() if re.match(r"\| [A-F]\d+ \|", line)}


def missing(named: list[tuple[str, str]]) -> list[str]:
    """Tests that are named and not there."""
    found = {path: functions(ROOT / path) for path in {path for path, _ in named}}
    return [f"{path}::{name}" for path, name in named if name not in found[path]]


def functions(path: Path) -> set[str]:
    """Names of a file's functions; none where there is no file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else iter(())
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_case_has_a_row_with_a_link_and_a_test() -> None:
    table = rows()
    assert tuple(table) == TAGS
    for tag, line in table.items():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, tag
        assert "https://" in cells[1], tag
        assert NAMED.search(cells[2]), tag
        assert len(cells[3].split()) >= 5, f"{tag} does not say what happens here"


def test_every_test_that_a_page_names_is_there() -> None:
    for page in ("cases.md", "policies.md"):
        named = NAMED.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
        assert len(named) > 10
        assert missing(named) == []


def test_a_test_that_is_not_there_would_be_noticed() -> None:
    assert missing([("tests/cases/test_table.py", "test_nobody_wrote"), ("tests/cases/none.py", "test_x")]) == [
        "tests/cases/test_table.py::test_nobody_wrote", "tests/cases/none.py::test_x",
    ]  # fmt: skip
