"""Sheet: a table of results as plain values, for a screen and for JSON alike."""

from __future__ import annotations

from typing import Any

import attrs


def readable(value: float) -> str:
    """Four figures, and every figure of the whole part up to 1e7; no exponent between 1e-4 and that."""
    whole = value == round(value) or abs(value) >= 1000
    return f"{value:.0f}" if whole and abs(value) < 1e7 else f"{value:.4g}"


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
