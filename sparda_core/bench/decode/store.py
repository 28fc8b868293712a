"""Rows of a benchmark in a folder, one file a cell, so that an interrupted run keeps what it has. Torch-free."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.decode.bars import bars
from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.report import Row, gains, table
from sparda_core.errors import ConfigError
from sparda_core.files import csv_text, parse_json, read_document, write_whole

#: What damaged rows do to those who make tables of them.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@attrs.frozen(kw_only=True)
class Settings:
    """What all cells of a run share, and what makes two runs comparable.

    warmup, steps   steps before the measured ones, and measured
    locality        name of the locality that the traces are drawn from; each cell's churn replaces its own
    seed            of traces and weights
    gpu_memory_gib  cap on device memory; None: all of it
    recording       name or file of a recording that is played in place of a locality; None: none is
    """

    warmup: int = 16
    steps: int = 96
    locality: str = "hisparse"
    seed: int = 0
    gpu_memory_gib: float | None = None
    recording: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.steps < 64:
            raise ConfigError(f"steps={self.steps} must be >= 64: a quoted step time is a median of so many")
        if self.warmup < 1:
            raise ConfigError(f"warmup={self.warmup} must be >= 1")


class Store:
    """Rows by cell; a row of other settings, or of another machine, is not taken for one of these."""

    def __init__(self, folder: Path, settings: Settings, machine: str) -> None:
        self._folder, self._settings, self._machine = folder, settings, machine

    def _identity(self, cell: Cell) -> Row:
        return {"cell": cell.to_plain(), "settings": attrs.asdict(self._settings), "machine": self._machine}

    def path(self, cell: Cell) -> Path:
        """Where the row of a cell lies."""
        name = json.dumps(self._identity(cell), sort_keys=True)
        return self._folder / "cells" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def read(self, cell: Cell) -> Row | None:
        """The row of a cell; None where there is none. Raises ConfigError for a damaged file."""
        path = self.path(cell)
        if not path.exists():
            return None
        try:
            found = parse_json(read_document(path))
            if found["identity"] == self._identity(cell):
                return _whole(found["row"])
        except _DAMAGE as wrong:
            raise ConfigError(f"{path} is damaged ({wrong}); delete it and run again") from wrong
        return None

    def write(self, cell: Cell, row: Row) -> None:
        """Keep a row."""
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"identity": self._identity(cell), "row": row}, indent=1) + "\n")

    def finish(self, rows: Sequence[Row], provenance: Row) -> Row:
        """Write `decode.json` and `decode.csv`, all rows together, and give the document back."""
        document = {"settings": attrs.asdict(self._settings), "provenance": provenance, "rows": list(rows)}
        write_whole(self._folder / "decode.json", json.dumps(document, indent=1) + "\n")
        write_whole(self._folder / "decode.csv", table_csv(rows))
        return document


def read_rows(path: Path) -> Row:
    """A `decode.json`; raises ConfigError where it is none, OSError where it cannot be read."""
    try:
        found: Row = parse_json(read_document(path))
        rows = [_whole(row) for row in found["rows"]]
        gains(rows)
        bars(rows)
    except _DAMAGE as wrong:
        raise ConfigError(f"{path} is no result of `sparda bench decode`: {wrong!r}") from wrong
    return found


#: What a row need not say of its cell: one from before there was such a choice lacks it.
_LATER = ("copy_launch", "lead", "entries", "shape", "ctas", "in_flight_kib", "block")
_NAMES = tuple(field.name for field in attrs.fields(Cell) if field.name not in _LATER)
#: What is null where nothing moves.
_PARTS = ("copies_s", "copies_beside_s", "head_s", "tail_s", "compute_s", "compute_beside_copy_s", "bound")
#: Figures of every cell that was measured.
_FIGURES = (
    "step_s", "step_p90_s", "tokens_per_s", "floor_s", "floor_share", "link_floor_s", "link_share", "link_bytes_per_s",
    "miss_share", "moved_bytes",
)  # fmt: skip


def _whole(row: Any) -> Row:
    """The row, if tables can be made of it; else raises KeyError or TypeError."""
    names = ("key", "refused") if "refused" in row else ("key", *_NAMES, *_FIGURES, *_PARTS)
    missing = [name for name in names if name not in row]
    if missing:
        raise KeyError(f"a row lacks {', '.join(missing)}")
    wrong = [name for name in _FIGURES if name in row and not _is_number(row[name])]
    if not isinstance(row, dict) or wrong:
        raise TypeError(f"a row has no number in {', '.join(wrong)}" if wrong else "a row is no object")
    table([row])
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def table_csv(rows: Sequence[Row]) -> str:
    """One line a cell; columns are the scalar fields of all rows, in order of appearance."""
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict)))
    return csv_text([{name: row.get(name) for name in columns} for row in rows])
