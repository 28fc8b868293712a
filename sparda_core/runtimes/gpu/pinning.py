"""Host memory that a GPU reads in place: exactly as much as was asked for, in one range of addresses.

torch's own pinned allocator rounds up to a power of two, which can double a store. One range, because kernels
address every block of the store from one pointer. How it is pinned is a choice (`METHODS`), made by measurement.
"""

from __future__ import annotations

import _thread
import ctypes
import math
import resource
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.latch import Latch
from sparda_core.runtimes.gpu.cuda_driver import CudaDriver, Driver, PinningError
from sparda_core.runtimes.gpu.mapping import HUGE_BYTES, Mapping
from sparda_core.runtimes.gpu.options import PINNINGS

#: "cuda-host-alloc"  one call of the driver. It cannot be cut into pieces, so progress is told at its ends only;
#:                    Ctrl-C comes through at once, and the memory is given back as soon as the call returns
#: "register-4k"      ordinary pages of 4 KiB, pinned chunk by chunk
#: "register-huge"    transparent huge pages of 2 MiB, pinned chunk by chunk
#: "plain"            not pinned: for machines without CUDA
METHODS = PINNINGS
#: Registered at once: about a second's work, after which progress is told and Ctrl-C comes through.
CHUNK_BYTES = 2 << 30

#: (bytes done, bytes in all)
Progress = Callable[[int, int], None]


def default_method() -> str:
    """The method taken where none is named."""
    return "cuda-host-alloc" if torch.cuda.is_available() else "plain"


def pinned_empty(
    size: int, *, method: str | None = None, progress: Progress | None = None, unit: int = 1, threads: int = 8,
    chunk_bytes: int = CHUNK_BYTES, driver: Driver | None = None,
) -> torch.Tensor:  # fmt: skip
    """uint8 [size] on the host, content undefined. Freed, once, when no tensor shows any of it any more.

    method    one of METHODS; None: `default_method()`
    progress  told after every chunk
    unit      bytes that a chunk never divides, such as a block, so that the copy engine may move each of them: it
              refuses a range that crosses two registered chunks, which kernels need not care about
    threads   that touch a chunk's pages before it is registered
    driver    None: CUDA's
    Raises ConfigError for a method that this machine lacks, CapacityError, with the numbers and with nothing
    held, where memory is short.
    """
    method = method or default_method()
    if method not in METHODS:
        raise ConfigError(f"pinning method {method!r} is unknown; known: {', '.join(METHODS)}")
    if min(size, unit, threads, chunk_bytes) < 1:
        raise ConfigError(f"size={size}, unit={unit}, threads={threads}, chunk_bytes={chunk_bytes} must be >= 1")
    _check_limit(size)
    tell = progress or (lambda done, total: None)
    tell(0, size)
    if method == "plain":
        mapping = Mapping(size)
        tell(size, size)
        return _tensor(mapping.address, size, mapping.close)
    using = driver or CudaDriver()
    try:
        if method == "cuda-host-alloc":
            address = _alloc(using, size)
            memory = _tensor(address, size, lambda: using.host_free(address))
            tell(size, size)
            return memory
        # Chunks begin on huge pages: a page must not be registered twice.
        step = math.lcm(unit, HUGE_BYTES)
        chunk = max(step, chunk_bytes // step * step)
        return _registered(using, Mapping(size, huge=method == "register-huge"), size, tell, threads, chunk)
    except PinningError as wrong:
        raise _short(size, str(wrong)) from wrong


def _tensor(address: int, size: int, free: Callable[[], None]) -> torch.Tensor:
    """Memory as a tensor; `free` runs when the last view of it is gone.

    Not at the end of the process: tensors may still be in use then, and the system takes everything back anyway.
    """
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, free).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8)


def _alloc(driver: Driver, size: int) -> int:
    """Allocate in a thread of its own, so that Ctrl-C does not wait for the call; whoever gives up gets nothing."""
    lock, done, given_up = threading.Lock(), Latch(), False
    address, failure = 0, None

    def work() -> None:
        nonlocal address, failure
        try:
            got = driver.host_alloc(size)
            with lock:
                if given_up:
                    driver.host_free(got)
                else:
                    address = got
        except BaseException as wrong:  # noqa: BLE001 - raised again where it is waited for
            failure = wrong
        finally:
            done.open()

    try:
        # Thread.start takes locks in Python code, where a signal leaves them held.
        _thread.start_new_thread(work, ())
        while not done.nap(0.2):
            pass
    except BaseException:
        with lock:
            given_up = True
            if address:
                driver.host_free(address)
        raise
    if failure is not None:
        raise failure
    return address


def _registered(
    driver: Driver, mapping: Mapping, size: int, tell: Progress, threads: int, chunk: int
) -> torch.Tensor:
    pinned: list[int] = []

    def free() -> None:
        while pinned:
            driver.unregister(pinned.pop())
        mapping.close()

    try:
        for start in range(0, size, chunk):
            length = min(chunk, size - start)
            mapping.touch(start, length, threads)
            driver.register(mapping.address + start, length)
            pinned.append(mapping.address + start)
            tell(start + length, size)
    except BaseException:
        free()
        raise
    return _tensor(mapping.address, size, free)


def memory_limit() -> int | None:
    """Most bytes this process's control group may hold; None: no such limit.

    What /proc calls the total is no limit: memory of a virtual machine may grow as it is used.
    """
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(name)
        text = path.read_text().strip() if path.exists() else ""
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _check_limit(size: int) -> None:
    limit = memory_limit()
    if limit is not None and size > limit:
        raise CapacityError(
            tier="host", need=size, free=limit, unit="bytes",
            hint="this process may not hold more; lower rows or tokens, or set host_limit_bytes (--host-limit-gib)",
        )  # fmt: skip


def _short(size: int, why: str) -> CapacityError:
    free = next(
        (int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable")), 0
    )
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "without limit" if lock == resource.RLIM_INFINITY else f"{lock} bytes"
    return CapacityError(
        tier="host", need=size, free=free, unit="bytes",
        hint=f"{why}; this process may lock memory {locked}: lower rows or tokens, set host_limit_bytes "
        "(--host-limit-gib), or try another pinning method",
    )  # fmt: skip


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
