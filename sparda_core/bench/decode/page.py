"""Tables of docs/decode.md, filled from a result file. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparda_core.bench.decode.bars import bars
from sparda_core.bench.decode.markdown import bars_table, kinds_table, parts_table, selection_table, steps_table
from sparda_core.bench.decode.report import Row
from sparda_core.bench.page import fill
from sparda_core.errors import ConfigError

#: Cells whose operations are told one by one.
_PARTS = ("forecast resident", "query sync", "forecast prefetch")


def _headline(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["context"] == 1 << 17 and row["launches"] == "graph"]


def _apart(rows: list[Row]) -> list[Row]:
    plain = [row for row in _headline(rows) if "kinds_s" in row and row["slots"] == 1 and row["host_dtype"] == "same"]
    return [
        row for row in plain
        if row["batch"] in (1, 16, 28) and row["churn"] == 0.10 and row["engine"] == "uva"
        and f"{row['selector']} {row['runtime'].removeprefix('offload-')}" in _PARTS
    ]  # fmt: skip


def _choosing(rows: list[Row]) -> list[Row]:
    """The two ways to choose that the paper compares, in the pool that they are compared in, short contexts first."""
    pairs = (("query", "offload-sync"), ("forecast", "offload-prefetch"))
    told = [
        row for row in rows
        if (row["selector"], row["runtime"]) in pairs and "kinds_s" in row and row["host_dtype"] == "same"
        and row["copy_launch"] == "layer"
    ]  # fmt: skip
    return sorted(told, key=lambda row: (row["context"], row["batch"], pairs.index((row["selector"], row["runtime"]))))


def _short_of(rows: list[Row]) -> list[Row]:
    """Rows that are told in parts and whose bars are missed, each once."""
    missed = {bar.where for bar in bars(rows) if not bar.met}
    places = {row["key"]: {row["key"], f"b{row['batch']} {row['context'] // 1024}K"} for row in rows}
    return [
        row for row in rows
        if row["selector"] == "forecast" and row["runtime"] == "offload-prefetch" and row["copy_launch"] == "layer"
        and "kinds_s" in row and any(where in places[row["key"]] or where.endswith(_at(row)) for where in missed)
    ]  # fmt: skip


def _at(row: Row) -> str:
    return f"offload-prefetch b{row['batch']} {row['context'] // 1024}K"


TABLES: Mapping[str, Callable[[list[Row]], str]] = {
    "steps": lambda rows: steps_table(_headline(rows)),
    "short": lambda rows: steps_table([row for row in rows if row["context"] != 1 << 17]),
    "eager": lambda rows: steps_table([row for row in rows if row["launches"] == "eager"]),
    "kinds": lambda rows: kinds_table(_apart(rows)),
    "selection": lambda rows: selection_table(_choosing(rows)),
    "parts": lambda rows: parts_table(_short_of(rows)),
    "bars": lambda rows: bars_table(bars(rows)),
}


def filled(page: str, documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with every table as the rows make it.

    documents  by name; a table called NAME-TABLE takes the rows of document NAME, one called TABLE those of ""
    Raises ConfigError for a table or a document that is not known.
    """

    def made(place: str) -> str:
        name, _, table = place.rpartition("-")
        if table not in TABLES or name not in documents:
            raise ConfigError(f"table={place!r} is unknown; known: {', '.join(TABLES)} of {sorted(documents)}")
        return TABLES[table](documents[name]["rows"])

    return fill(page, made)
