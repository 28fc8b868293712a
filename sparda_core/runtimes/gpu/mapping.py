"""A range of the process's own memory, aligned to huge pages, before anybody pins it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

from sparda_core.errors import CapacityError, ConfigError

#: A huge page; every mapping begins on one.
HUGE_BYTES = 2 << 20
_ADVICE_HUGE, _ADVICE_NO_HUGE, _ADVICE_POPULATE_WRITE = 14, 15, 23
_FAILED = ctypes.c_void_p(-1).value


def _library() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


class Mapping:
    """`size` bytes of anonymous memory at `address`, a multiple of 2 MiB; no page is there until it is touched.

    huge  True: in huge pages, False: never in huge pages, None: as the system likes
    Raises CapacityError where there is no room, ConfigError where the system has no huge pages.
    """

    def __init__(self, size: int, *, huge: bool | None = None) -> None:
        self._libc, self._length = _library(), size + HUGE_BYTES
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = self._libc.mmap(None, self._length, protection, flags, -1, 0)
        if start is None or start == _FAILED:
            raise CapacityError(
                tier="host", need=size, free=0, unit="more bytes",
                hint=f"{os.strerror(ctypes.get_errno())}: lower rows or tokens, or set host_limit_bytes "
                "(--host-limit-gib)",
            )  # fmt: skip
        self._start: int | None = start
        self.address = -(-start // HUGE_BYTES) * HUGE_BYTES
        if huge is not None:
            self._advise_pages(size, huge=huge)

    def _advise_pages(self, size: int, *, huge: bool) -> None:
        wrong = self._advise(self.address, size, _ADVICE_HUGE if huge else _ADVICE_NO_HUGE)
        # A system without huge pages refuses either advice, and then has only small ones.
        if wrong and huge:
            self.close()
            raise ConfigError(
                f"pinning method 'register-huge': {os.strerror(wrong)}, this system has no transparent huge pages; "
                "use 'register-4k' or 'cuda-host-alloc'"
            )

    def touch(self, start: int, length: int, threads: int) -> None:
        """Make the pages of a part be there, by several threads at once; whoever pins them then need not.

        A system that cannot be asked for this leaves it to the pinning. Raises CapacityError where memory is short.
        """
        part = -(-length // threads // HUGE_BYTES) * HUGE_BYTES
        pieces = [(start + at, min(part, length - at)) for at in range(0, length, part)]
        with ThreadPoolExecutor(threads) as pool:
            failed = list(pool.map(self._populate, pieces))
        if errno.ENOMEM in failed:
            raise CapacityError(
                tier="host", need=length, free=0, unit="more bytes",
                hint="memory is full: lower rows or tokens, or set host_limit_bytes (--host-limit-gib)",
            )  # fmt: skip

    def _populate(self, piece: tuple[int, int]) -> int:
        return self._advise(self.address + piece[0], piece[1], _ADVICE_POPULATE_WRITE)

    def _advise(self, address: int, length: int, advice: int) -> int:
        return ctypes.get_errno() if self._libc.madvise(address, length, advice) else 0

    def close(self) -> None:
        """Give the range back; closing twice is allowed."""
        start, self._start = self._start, None
        if start is not None:
            self._libc.munmap(start, self._length)
