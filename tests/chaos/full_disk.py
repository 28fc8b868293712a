"""A disk that is full after so many bytes of a file: the limit that the system itself puts on the size of files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond `file_bytes`: the write that would fails, as on a full disk, in part.

    Python ignores the signal that comes with it, so that the write returns an error (EFBIG).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def open_files() -> set[str]:
    """What this process holds open, by number and name."""
    held = set[str]()
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(f"{handle.name} {handle.readlink()}")
    return held
