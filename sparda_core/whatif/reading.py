"""Sheet: a table of results as plain values, for a screen and for JSON alike."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Sheet:
    """A table: what it says, its columns with their units, its rows, and remarks on how to read it.

    long  True where it has a row a point: for JSON, too much for a screen
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()
    long: bool = False

    def records(self) -> list[dict[str, Any]]:
        """Rows as column -> value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]
