"""Memory that runs out: every allocation of the package's own code is counted, and any one of them can be refused."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.chaos.cuts import PACKAGE, Place

#: What takes memory, by the module or class that offers it.
TAKES: dict[Any, tuple[str, ...]] = {
    np: ("empty", "zeros", "full", "ones", "concatenate", "stack", "array", "arange", "ascontiguousarray", "require"),
    torch: ("empty", "zeros", "full", "ones", "empty_like", "cat", "stack", "arange", "tensor"),
    torch.Tensor: ("new_empty", "new_zeros", "new_full", "clone", "contiguous", "to"),
}


def out_of_memory(where: Any) -> BaseException:
    """The error that numpy, or torch on a CPU or a GPU, raises."""
    if where is np:
        return MemoryError("Unable to allocate 1.00 TiB for an array")
    if torch.cuda.is_available():
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB")
    return RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")


@contextlib.contextmanager
def counted(seen: Callable[[Place, Any], None]) -> Iterator[None]:
    """Call `seen(place, where)` before each allocation that a line of the package asks for."""

    def watched(where: Any, take: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(take)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_code.co_filename.startswith(PACKAGE):
                seen((frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno), where)
            return take(*args, **kwargs)

        return wrapper

    kept = {(where, name): getattr(where, name) for where, names in TAKES.items() for name in names}
    try:
        for (where, name), take in kept.items():
            setattr(where, name, watched(where, take))
        yield
    finally:
        for (where, name), take in kept.items():
            setattr(where, name, take)


@contextlib.contextmanager
def refused(which: int) -> Iterator[None]:
    """The allocation with that number, counted from 0, finds no memory."""
    left = which

    def count(_: Place, where: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise out_of_memory(where)

    with counted(count):
        yield


def sites(work: Callable[[], Any]) -> list[Place]:
    """The places of all allocations of some work, in order."""
    places: list[Place] = []
    with counted(lambda place, _: places.append(place)):
        work()
    return places
