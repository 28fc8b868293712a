"""One writer at a time: a lock beside what is written, which ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sparda_core.errors import ConfigError
from sparda_core.files import make_folder


@contextlib.contextmanager
def locked(path: Path, *, option: str = "out") -> Iterator[None]:
    """Hold `path` for this process, by the file `path`.lock, which is gone afterwards.

    option  the option that names `path`, for the error
    raises  ConfigError at once where another process holds it; OSError where the lock cannot be written
    """
    with _held(path, path.with_name(path.name + ".lock"), option):
        yield


@contextlib.contextmanager
def locked_folder(folder: Path, *, option: str = "out") -> Iterator[None]:
    """Hold a folder for this process, by a file .lock in it, which is gone afterwards.

    The folder is made if need be, and is gone again if nothing came into it.
    raises  ConfigError at once where another process holds it; OSError where it cannot be written to
    """
    fresh = not folder.exists()
    make_folder(folder)
    try:
        with _held(folder, folder / ".lock", option):
            yield
    finally:
        if fresh:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


@contextlib.contextmanager
def _held(path: Path, lock: Path, option: str) -> Iterator[None]:
    handle = _taken(path, lock, option)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)  # before it is let go: who opened it meanwhile sees that it is not there
        os.close(handle)


def _taken(path: Path, lock: Path, option: str) -> int:
    import fcntl  # not everywhere, and needed by few

    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as wrong:
            holder = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            whose = f" (process {holder})" if holder else ""
            raise ConfigError(
                f"{option}={str(path)!r} is being written by another run{whose}: wait for it, or name another "
                f"--{option}"
            ) from wrong
        if _same(handle, lock):
            return handle
        os.close(handle)  # it was removed between opening and locking: another run has just ended


def _same(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False
