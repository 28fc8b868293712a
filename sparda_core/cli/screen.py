"""What a command shows: tables and JSON on standard output, progress on standard error."""

from __future__ import annotations

import enum
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs
import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparda_core.whatif.reading import readable

#: Columns of a table that is read by a file or a pipe, which has no width of its own.
PIPE_WIDTH = 160
#: Columns of text are broken between words, but not below so many characters where they need not be.
_READABLE = 24
#: Characters between two columns, and at both ends of a row.
_GAP, _EDGES = 3, 2


def console(stream: TextIO | None = None) -> Console:
    """A console on standard output, or on `stream`; made when needed, so that redirection is seen."""
    target = sys.stdout if stream is None else stream
    return Console(file=target, width=None if target.isatty() else PIPE_WIDTH, highlight=False)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, notes: Sequence[str] = ()) -> None:
    """Print one table; columns whose values are all numbers are set to the right. Text is taken literally.

    Where the screen is too narrow for its words, columns that do not fit follow below, those that name a row repeated.
    """
    body = [list(row) for row in rows]
    out, texts = console(), [[column, *(cell(row[at]) for row in body)] for at, column in enumerate(columns)]
    out.print(Text(title, style="bold"))
    if _least_width(texts) <= out.width:
        out.print(_table(columns, body, range(len(columns)), named=True))
    else:
        for part in _parts(texts, out.width):
            out.print(_table(columns, body, part, named=False))
    for note in notes:
        out.print(Text(note, style="dim"))
    if notes:
        out.print()


def _table(columns: Sequence[str], body: Sequence[Sequence[Any]], shown: Sequence[int], *, named: bool) -> Table:
    """The columns `shown`; `named`: the first one, which names the row, is never broken."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in shown:
        right = bool(body) and all(_numeric(row[at]) for row in body)
        table.add_column(
            Text(columns[at]), justify="right" if right else "left", overflow="fold", no_wrap=named and at == 0
        )
    for row in body:
        table.add_row(*(Text(cell(row[at])) for at in shown))
    return table


def _word(column: Sequence[str]) -> int:
    return max((cell_len(word) for text in column for word in text.split()), default=0)


def _line(column: Sequence[str]) -> int:
    return max(cell_len(text) for text in column)


def _least_width(texts: Sequence[Sequence[str]]) -> int:
    """Of a table in one piece: the first column stays on one line, the others are broken between words."""
    return _EDGES + _line(texts[0]) + sum(_GAP + _word(column) for column in texts[1:])


def _parts(texts: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns dealt out so that each part fits within `width`: those that name a row in each, every other one in one.

    texts  of each column, its head first
    """
    words, lines = [_word(column) for column in texts], [_line(column) for column in texts]
    naming = range(_naming(texts))
    share = width // (2 * len(naming))
    room = width - _EDGES - sum(max(words[at], min(lines[at], share)) + _GAP for at in naming)
    parts: list[list[int]] = [[*naming]]
    used = 0
    for at in range(len(naming), len(texts)):
        need = min(lines[at], max(words[at], _READABLE)) + _GAP
        if len(parts[-1]) > len(naming) and used + need > room:
            parts.append([*naming])
            used = 0
        parts[-1].append(at)
        used += need
    return parts


def _naming(texts: Sequence[Sequence[str]]) -> int:
    """How many of the first columns tell the rows apart: up to three, one where these do not."""
    for count in range(1, min(4, len(texts))):
        names = list(zip(*(column[1:] for column in texts[:count]), strict=True))
        if len(set(names)) == len(names):
            return count
    return 1


def say(title: str, text: str) -> None:
    """Print a title and a sentence, broken between words where they are longer than the screen."""
    out = console()
    out.print(Text(title, style="bold"))
    out.print(Text(text))
    out.print()


def _numeric(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(value: Any) -> str:
    """One value as text: four figures of a float or more (`readable`), `-` for nothing, yes or no."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return readable(value) if isinstance(value, float) and math.isfinite(value) else str(value)


def seconds(value: float | None) -> str:
    """A duration with the unit that fits it."""
    if value is None or math.isnan(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(value) * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return "0" if value == 0 else f"{value * 1e9:.3g} ns"


def size(value: float | None) -> str:
    """A number of bytes with the decimal unit that fits it."""
    if value is None or math.isnan(value):
        return "-"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def show_json(data: Any) -> None:
    """Print one JSON document; what JSON has no word for (NaN, infinity) becomes null."""
    sys.stdout.write(json.dumps(plain(data), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """`value` as what JSON can hold: attrs classes as objects, arrays as lists, paths as text, NaN as null."""
    if attrs.has(type(value)):
        return {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item) for item in items]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
