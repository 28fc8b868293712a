"""A table of text, the same for a terminal, a page and JSON. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

Cells = tuple[str, ...]


def _lines(lines: Iterable[Iterable[str]]) -> tuple[Cells, ...]:
    return tuple(tuple(line) for line in lines)


@attrs.frozen(kw_only=True)
class Table:
    """A heading a column, and lines of text."""

    title: str
    head: Cells
    lines: tuple[Cells, ...] = attrs.field(converter=_lines)


def percent(value: float | None, *, signed: bool = True) -> str:
    """A share as per cent; `-` for nothing."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds; `-` for nothing."""
    return "-" if value is None else f"{1e3 * value:.2f}"
