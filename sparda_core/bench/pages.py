"""Pages of the documentation whose tables are filled from data. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_PLACE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_page(page: str, make: Callable[[str], str]) -> str:
    """The page with what stands between `<!-- table: NAME -->` and `<!-- end -->` as `make(NAME)` has it."""
    return _PLACE.sub(lambda found: f"{found[1]}{make(found[2])}\n{found[3]}", page)


def names_of(page: str) -> list[str]:
    """Names of a page's tables, in order."""
    return [found[2] for found in _PLACE.finditer(page)]


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; cells as text."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
