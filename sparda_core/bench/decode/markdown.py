"""Rows of the decode benchmark as tables of a Markdown page. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparda_core.bench.decode.bars import Bar
from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.floors import kind_floors_s, selection_floor_s
from sparda_core.bench.decode.report import Row

#: Kinds of operations in the order of a step, and how the page calls them.
_KINDS = ("project", "score", "select", "diff", "attend", "output", "mlp", "head")


def steps_table(rows: Sequence[Row]) -> str:
    """One line a cell: step, tokens/s, floors and their share of the step."""
    head = ("cell", "step ms", "tokens/s", "misses", "memory floor ms", "link floor ms", "larger floor / step")
    return _table(head, (_step_line(row) for row in rows))


def _step_line(row: Row) -> list[str]:
    if "refused" in row:
        return [row["key"], "does not fit", "", "", "", "", ""]
    larger = max(row["floor_share"], row["link_share"])
    misses = f"{row['miss_share']:.1%}" if row["moved_bytes"] else "-"
    link = f"{row['link_floor_s'] * 1e3:.2f}" if row["moved_bytes"] else "-"
    return [
        row["key"], f"{row['step_s'] * 1e3:.2f}", f"{row['tokens_per_s']:,.0f}", misses, f"{row['floor_s'] * 1e3:.2f}",
        link, f"{larger:.2f}",
    ]  # fmt: skip


def kinds_table(rows: Sequence[Row]) -> str:
    """Milliseconds of a step by kind of operation, each kind alone."""
    return _table(("cell", *_KINDS), ([row["key"], *(_kind(row, kind) for kind in _KINDS)] for row in rows))


def _kind(row: Row, kind: str) -> str:
    taken = row["kinds_s"].get(kind)
    return "-" if taken is None else f"{taken * 1e3:.2f}"


def parts_table(rows: Sequence[Row]) -> str:
    """One line a part of a step: time, floor and their ratio; transfers alone and beside compute that never ends."""
    return _table(("cell", "part", "ms", "floor ms", "ms / floor"), (line for row in rows for line in _parts(row)))


def _parts(row: Row) -> Iterable[list[str]]:
    cell = Cell.of(row)
    floors = kind_floors_s(cell, cell.model, cell.spec)
    for kind in _KINDS:
        if kind in row["kinds_s"]:
            yield _part(row["key"], kind, row["kinds_s"][kind], floors.get(kind, 0.0))
    for name, field in (("transfers, alone", "copies_s"), ("transfers, beside compute", "copies_beside_s")):
        if row[field]:
            yield _part(row["key"], name, row[field], row["link_floor_s"])


def _part(key: str, name: str, taken_s: float, floor_s: float) -> list[str]:
    floor, ratio = (f"{floor_s * 1e3:.2f}", f"{taken_s / floor_s:.2f}") if floor_s else ("-", "-")
    return [key, name, f"{taken_s * 1e3:.2f}", floor, ratio]


def selection_table(rows: Sequence[Row]) -> str:
    """One line a cell: microseconds a layer of scoring, choice and diff, their floor and the ratio."""
    head = ("cell", "score us", "select us", "diff us", "floor us", "selection / floor")
    return _table(head, (_selection(row) for row in rows))


def _selection(row: Row) -> list[str]:
    cell = Cell.of(row)
    taken = [1e6 * row["kinds_s"][kind] / cell.model.layers for kind in ("score", "select", "diff")]
    floor_us = 1e6 * selection_floor_s(cell, cell.model, cell.spec)
    return [row["key"], *(f"{us:.1f}" for us in taken), f"{floor_us:.1f}", f"{sum(taken) / floor_us:.2f}"]


def bars_table(judged: Sequence[Bar]) -> str:
    """One line a bar."""
    head = ("what", "where", "figure", "bound", "met")
    return _table(head, (
        [bar.name, bar.where, f"{bar.figure:.3f}", f"{'>=' if bar.least else '<='} {bar.bound:.3g}",
         "yes" if bar.met else "**no**"]
        for bar in judged
    ))  # fmt: skip


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
