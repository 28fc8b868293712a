"""Store: the folder of a study. Finished rows survive whatever ends the process; the rest can be done later."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.files import make_folder, parse_json, read_document, write_whole
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import FIGURES, Row, from_line, to_line

#: The journal: one finished row a line, in the order of the grid. The table: the same, written when all are there.
JOURNAL, TABLE, STUDY = "rows.jsonl", "rows.csv", "study.json"
#: Bytes of a row that is none: real ones have some hundred.
_LONGEST_LINE = 1 << 20


class Store:
    """An open folder. Use it in a `with` statement; one process at a time.

    folder    made if it is not there; must be empty unless `resume`
    identity  what makes two studies the same one: grid, version, digests of the files it reads
    resume    go on with the study that the folder holds; an empty folder starts one
    raises    ConfigError: the folder holds something, or another study (the first difference is named), or is in use;
              RecordingError: a row in the middle is damaged; OSError: it cannot be written to
    """

    def __init__(self, folder: Path, grid: Grid, identity: dict[str, Any], *, resume: bool) -> None:
        self.folder, self._grid, self.identity = folder, grid, identity
        self.rows: dict[int, Row] = {}
        check_folder(folder, identity, resume=resume)
        self._journal: IO[bytes] = (folder / JOURNAL).open("a+b")
        try:
            self._lock()
            self.rows = {row.point: row for row in self._read()}
            if not (folder / STUDY).exists():
                write_study(folder, {**identity, "finished": False})
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._journal.close()
        except OSError:  # a full disk refuses what is still buffered; the error under way says where
            if wrong is None:
                raise

    def add(self, rows: Iterable[Row]) -> None:
        """Append finished rows; they are on the disk when this returns. Raises OSError naming the journal."""
        fresh = list(rows)
        try:
            self._journal.write("".join(to_line(row) + "\n" for row in fresh).encode())
            self._journal.flush()
            os.fsync(self._journal.fileno())
        except OSError as wrong:  # a full disk names no file
            raise OSError(wrong.errno, wrong.strerror, str(self.folder / JOURNAL)) from wrong
        self.rows |= {row.point: row for row in fresh}

    def write_table(self) -> None:
        """Write rows.csv from every row there is, in the order of the grid, all or nothing."""
        write_whole(self.folder / TABLE, table(self._grid, [self.rows[point] for point in sorted(self.rows)]))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"folder {str(self.folder)!r} is in use by another run; wait for it") from None

    def _read(self) -> Iterator[Row]:
        """Rows of the journal; a last line that was not written to its end is cut off."""
        self._journal.seek(0)
        good = 0
        for number, line in enumerate(iter(lambda: self._journal.readline(_LONGEST_LINE), b""), start=1):
            if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                self._journal.truncate(good)
                return
            good += len(line)
            try:
                yield from_line(line, self._grid)
            except RecordingError as wrong:
                place = f"{self.folder / JOURNAL}, line {number}"
                raise RecordingError(f"{place}: {wrong}; remove the line, and --resume does its point again") from wrong


def check_folder(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Make the folder, and see that a study may be kept there; raises as Store does."""
    make_folder(folder)
    # An empty journal alone is left by a run that ended before it had begun: a full disk, a kill.
    if all(path.name == JOURNAL and not path.stat().st_size for path in folder.iterdir()):
        return
    if not resume:
        raise ConfigError(f"folder {str(folder)!r} is not empty; go on with --resume, or name a fresh one")
    try:
        held = parse_json(read_document(folder / STUDY))
    except FileNotFoundError:
        raise ConfigError(f"folder {str(folder)!r} holds no study ({STUDY}); name another") from None
    except ValueError as wrong:
        raise RecordingError(f"{folder / STUDY}: not JSON ({wrong}); name a fresh folder") from wrong
    mine = json.loads(json.dumps(identity))
    found = next(differences(held, mine), None) if isinstance(held, dict) else "the file is none of ours"
    if found is not None:
        raise ConfigError(f"folder {str(folder)!r} holds another study: {found}; name a fresh folder")


def write_study(folder: Path, document: Mapping[str, Any]) -> None:
    """Write study.json, all or nothing; `document` begins with the identity."""
    write_whole(folder / STUDY, json.dumps(document, indent=1, allow_nan=False) + "\n")


def differences(held: Mapping[str, Any], mine: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What two identities differ in, `where: theirs, here ours`; keys that only the folder has are its results."""
    for name, value in mine.items():
        other = held.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from differences(other, value, f"{prefix}{name}.")
            yield from (f"{prefix}{name}.{key} is only there" for key in sorted(other.keys() - value.keys()))
        elif other != value or name not in held:
            theirs = reprlib.repr(other) if name in held else "nothing"
            yield f"{prefix}{name} is {theirs} there, {reprlib.repr(value)} here"


def table(grid: Grid, rows: Sequence[Row]) -> str:
    """Rows as CSV: point, a column an axis, then FIGURES; a cell is empty where there is nothing to say."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["point", *(axis.name for axis in grid.axes), *FIGURES])
    for row in rows:
        cells = [row.labels[axis.name] for axis in grid.axes] + [getattr(row, name) for name in FIGURES]
        writer.writerow([row.point, *("" if value is None else value for value in cells)])
    return text.getvalue()
