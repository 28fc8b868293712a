"""A validation in a folder: a file a cell, timelines beside them; and the same as one compact document. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparda_core.bench.timelines import timeline_from_plain, timeline_to_plain
from sparda_core.bench.validate.cell import ValidationCell
from sparda_core.bench.validate.record import FORMAT, Record, read_record, write_record
from sparda_core.errors import RecordingError
from sparda_core.files import make_folder, parse_json, read_document, write_whole
from sparda_core.spans import Timeline

RECORDS, TIMELINES, DOCUMENT = "cells", "timelines", "validation.json"
#: Most bytes of a document of many records, and of a timeline.
_MOST_BYTES = 1 << 30
#: Lists for an H200: the first, and one drawn when the first one's cells were known.
SHIPPED, SECOND = (Path(__file__).parent / "cells" / name for name in ("h200.json", "h200-second.json"))


def _records(value: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class Run:
    """Records of one validation, in the order in which its cells are listed, and where they come from."""

    records: tuple[Record, ...] = attrs.field(converter=_records)
    provenance: dict[str, Any] = attrs.field(factory=dict)

    def group(self, name: str) -> tuple[Record, ...]:
        """Measured records that take part in a decision."""
        return tuple(record for record in self.records if name in record.groups and record.measured is not None)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all decisions, in order of appearance."""
        return tuple(dict.fromkeys(name for record in self.records for name in record.groups))


class Folder:
    """Records and timelines under one path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, cell: ValidationCell) -> Path:
        """Where the record of a cell lies."""
        return self.path / RECORDS / f"{cell.id}.json"

    def read(self, cell: ValidationCell) -> Record | None:
        """The record of a cell; None where there is none. Raises RecordingError for a damaged file."""
        path = self.file(cell)
        return read_record(path) if path.exists() else None

    def write(self, record: Record) -> None:
        """Keep a record."""
        make_folder(self.path / RECORDS)
        write_record(self.file(record.cell), record)

    def write_timeline(self, cell: ValidationCell, timeline: Timeline) -> str:
        """Keep spans of a cell's steps; returns the name that its record gives them."""
        make_folder(self.path / TIMELINES)
        name = f"{cell.id}.json"
        write_whole(self.path / TIMELINES / name, json.dumps(timeline_to_plain(timeline)) + "\n")
        return name

    def timeline(self, record: Record) -> Timeline | None:
        """The measured timeline of a record; None where none was taken."""
        if record.measured is None or record.measured.timeline is None:
            return None
        path = self.path / TIMELINES / record.measured.timeline
        if not path.exists():
            raise RecordingError(f"{path} is missing, the timeline of {record.cell.key!r}; measure its cell again")
        try:
            return timeline_from_plain(parse_json(read_document(path, most_bytes=_MOST_BYTES)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
            raise RecordingError(f"{path} is no timeline ({wrong}); measure its cell again") from wrong

    def records(self) -> tuple[Record, ...]:
        """All records, by name of their cell. Raises RecordingError where there is none."""
        found = [read_record(path) for path in sorted((self.path / RECORDS).glob("*.json"))]
        if not found:
            raise RecordingError(f"{self.path} holds no record of a validation; measure cells into it first")
        return tuple(sorted(found, key=lambda record: record.cell.key))


def shipped_cells() -> Run:
    """The list of cells that is measured unless another is named: drawn before any of them was."""
    return read_run(SHIPPED)


def read_run(path: Path) -> Run:
    """The records of a folder, or of a document that `write_run` wrote; raises RecordingError, OSError.

    A folder without single records is read from its document, as it is kept in a repository.
    """
    if path.is_dir() and not (path / RECORDS).is_dir() and (path / DOCUMENT).exists():
        path /= DOCUMENT
    if path.is_dir():
        return Run(records=Folder(path).records())
    try:
        plain = parse_json(read_document(path, most_bytes=_MOST_BYTES))
        if plain["format"] != FORMAT:
            raise RecordingError(f"format={plain['format']!r} must be {FORMAT}")
        run = Run(records=[Record.of(one) for one in plain["records"]], provenance=plain["provenance"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as wrong:
        beside = (path.parent / RECORDS).is_dir()
        way_out = f"delete it: the records lie in {path.parent / RECORDS}" if beside else "name another file"
        raise RecordingError(f"{path} is no validation ({wrong}); {way_out}") from wrong
    if not run.records:
        raise RecordingError(f"{path} holds no cell; draw a list (`sparda validate --draw SEED`), or name another file")
    return run


def write_run(path: Path, run: Run) -> None:
    """One document with all records, a line each, all or nothing."""
    write_whole(path, run_text(run.records, run.provenance))


def run_text(records: Iterable[Record], provenance: dict[str, Any]) -> str:
    """See `write_run`."""
    lines: Sequence[str] = [json.dumps(record.to_plain()) for record in records]
    head = f'{{"format": {FORMAT},\n"provenance": {json.dumps(provenance)},\n"records": [\n'
    return head + ",\n".join(lines) + "\n]}\n"
