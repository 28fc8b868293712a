"""Pages of docs/ whose tables are filled from data: `<!-- table: NAME -->`, the table, `<!-- end -->`. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_PLACE = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str, table: Callable[[str], str]) -> str:
    """The page with every table as `table(NAME)` makes it; what that raises for a name it does not know passes on."""
    return _PLACE.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", page)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without a last newline."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
