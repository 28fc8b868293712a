"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import secrets
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def target_of(path: Path) -> Path:
    """The ordinary file that `path` means, links followed; it need not exist yet.

    raises  OSError where its folder is missing, or something else is in its place: a folder, a device, a pipe. Moving
            a file onto one of these would remove it, and a superuser can do that to /dev/null.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.exists():
        told = f"its folder {str(path.parent)!r} does not exist; make it first, or name another place"
        raise FileNotFoundError(errno.ENOENT, told, str(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not an ordinary file; name another", str(path))
    return target


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A fresh, empty file beside `path`, to be written; it takes the place of `path` once the block ends well.

    Whoever reads `path` sees the old file or the new one, never a part; after a failure nothing is left.
    raises  OSError when the folder is missing, there is no room or no permission, or `path` is no file.
    """
    target = target_of(path)
    # Named before it is there: an interrupt right after it was made finds it, too.
    part = target.parent / f".{target.name}.{secrets.token_hex(8)}.part"
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        part.chmod(0o644)
        part.replace(target)
    except OSError as wrong:
        # A full disk names no file, what goes wrong with the file beside that one, which nobody asked for.
        if wrong.filename is None or os.fspath(wrong.filename) == str(part):
            raise OSError(wrong.errno, wrong.strerror or str(wrong), str(path)) from wrong
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A fresh, empty folder beside `path`, to be filled; it is `path` once the block ends well.

    After a failure nothing of it is left.
    raises  OSError when the folder around it is missing, there is no room or no permission, or `path` is there already
            and not an empty folder; its file name is `path`, whichever file of the folder found no room.
    """
    part = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        part.mkdir(mode=0o700)
        yield part
        part.chmod(0o755)
        part.rename(path)
    except OSError as wrong:
        if wrong.filename is None or part in (place := Path(os.fspath(wrong.filename)), *place.parents):
            raise OSError(wrong.errno, wrong.strerror or str(wrong), str(path)) from wrong
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `path` (text as UTF-8) in one step; raises OSError like `whole_file`."""
    with whole_file(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def check_place(path: Path) -> None:
    """See that a file can be written at `path` before any work is done for it; raises OSError."""
    target = target_of(path)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            return
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, str(path)) from wrong


#: Most bytes of a document (settings, a plan, a profile, a report); real ones have a few MiB at most.
MOST_DOCUMENT_BYTES = 64 << 20


def read_document(path: Path, *, most_bytes: int = MOST_DOCUMENT_BYTES) -> str:
    """The text of an ordinary file, as UTF-8.

    raises  OSError where it cannot be read, is no ordinary file (a pipe or a device may never end) or holds more than
            `most_bytes`; ValueError where it is no UTF-8, or the path is none
    """
    known = path.stat()
    if not stat.S_ISREG(known.st_mode):
        raise OSError(errno.EINVAL, "is not an ordinary file; name another", str(path))
    if known.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"holds more than {most_bytes} bytes, which no such file does", str(path))
    with path.open("rb") as file:
        return file.read(known.st_size).decode()  # room for so many bytes is made at once, whatever there is


def read_whole(path: Path, *, most_bytes: int = MOST_DOCUMENT_BYTES) -> str:
    """The text of an ordinary file of any size, or of a pipe or a device that ends within `most_bytes`, as UTF-8.

    raises  OSError where it cannot be read, or goes on for longer, as /dev/zero does; UnicodeDecodeError where it is no
            UTF-8, other ValueError where the path is none
    """
    with path.open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read().decode()
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"goes on for more than {most_bytes} bytes; name an ordinary file", str(path))
    return content.decode()


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as plain values; raises ValueError for anything else, numbers of more than 64 bits included."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in _values(table)):
        raise ValueError("it holds a whole number of more than 64 bits")
    return table


def parse_json(text: str | bytes) -> Any:
    """JSON as plain values; raises ValueError for anything else.

    Too many brackets within brackets are included, and halves of characters (lone surrogates), which no file can hold.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    escaped = (b"\\u" if isinstance(text, bytes) else "\\u") in text  # type: ignore[operator]
    for value in _values(found) if escaped else ():
        if isinstance(value, str):
            value.encode()
    return found


def _values(document: Any) -> Iterator[Any]:
    """Every value and every name of a document, however deep it is."""
    open_ones = [document]
    while open_ones:
        value = open_ones.pop()
        yield value
        if isinstance(value, dict):
            open_ones += [*value, *value.values()]
        elif isinstance(value, list):
            open_ones += value


def make_folder(path: Path) -> Path:
    """`path` as a folder that can be written to, made with its parents if need be.

    raises  OSError saying which folder; found out before any work is done for it.
    """
    check_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        return path


def check_folder(path: Path) -> None:
    """See that `make_folder` would succeed, making nothing; raises OSError saying what stands in the way."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is no folder; name another", str(there))
    try:
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, str(path)) from wrong


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV under the first one's names, in their order; None is an empty cell. At least one row."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
