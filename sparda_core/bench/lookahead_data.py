"""Tables of the lookahead study as they are kept. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparda_core.errors import ConfigError
from sparda_core.whatif.lookahead import AHEAD, SAME

Table = list[dict[str, Any]]
#: Documents of `sparda bench decode`.
Steps = Sequence[Mapping[str, Any]]
MEDIAN = "times as fast, median"


def table_of(study: Mapping[str, Any], start: str) -> Table:
    """Rows of the study's table whose title starts so; raises ConfigError where there is not one."""
    found = [table["rows"] for table in study["tables"] if table["title"].startswith(start)]
    if len(found) != 1:
        raise ConfigError(f"the study has {len(found)} tables called {start!r}; want one: run it again")
    return list(found[0])


def shares(study: Mapping[str, Any], by: str = "") -> Table:
    """The table of shares by trace, `by` (a machine, a context) and pool."""
    names = f"trace, {by}, pool" if by else "trace, pool"
    return table_of(study, f"What lookahead adds: {AHEAD} by {SAME}, by {names}")
