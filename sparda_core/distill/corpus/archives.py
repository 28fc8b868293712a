"""Files inside a Debian package or a source distribution, read without installing or building either."""

from __future__ import annotations

import fnmatch
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparda_core.errors import RecordingError

_AR = b"!<arch>\n"
#: Most bytes of all files taken from one archive: many times what the largest of ours has.
MOST_BYTES = 1 << 30


def read_members(archive: Path, patterns: Iterable[str]) -> dict[str, bytes]:
    """Contents of every regular file whose path matches one of `patterns`, by path, in order of paths.

    archive  a .deb, or a tar file in any compression
    raises   RecordingError where it is malformed, OSError where it cannot be read
    """
    wanted = tuple(patterns)
    try:
        data = _data_of_deb(archive.read_bytes()) if archive.suffix == ".deb" else archive.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = dict(_matching(tar, wanted))
    except (tarfile.TarError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, ValueError) as wrong:
        raise RecordingError(f"archive={str(archive)!r} cannot be read ({wrong}); fetch it again") from wrong
    return dict(sorted(found.items()))


def _matching(tar: tarfile.TarFile, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    left = MOST_BYTES
    for member in tar:
        path = member.name.removeprefix("./")
        if member.isfile() and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            left -= member.size
            if left < 0:
                raise ValueError(f"it unpacks to more than {MOST_BYTES} bytes")
            content = tar.extractfile(member)
            if content is not None:
                yield path, content.read()


def _data_of_deb(raw: bytes) -> bytes:
    """The member data.tar.* of an ar archive: heads of 60 bytes, contents padded to even lengths."""
    if not raw.startswith(_AR):
        raise ValueError("it is no Debian package")
    at = len(_AR)
    while at + 60 <= len(raw):
        name, length = raw[at : at + 16].decode("ascii", "replace").strip(" /"), int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return raw[at + 60 : at + 60 + length]
        at += 60 + length + length % 2
    raise ValueError("it holds no data.tar")
