"""Threads of torch and numba, which with OpenMP are counted in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import torch

_Made = TypeVar("_Made")


def start_numba() -> None:
    """Start numba's threads and leave torch's as many as they were.

    Over OpenMP numba sets the number of both when it starts its own, at the first parallel kernel: what OMP_NUM_THREADS
    gave torch would change in the midst of a session, and with it how fast engine `cpu-gather` gathers.
    """
    of_torch = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(of_torch)


class ComputeThreads:
    """Threads of torch and numba while a piece of work runs; what was set before is put back."""

    def __init__(self, threads: int) -> None:
        self._threads = (threads, min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]

    def run(self, work: Callable[[], _Made]) -> _Made:
        """What `work` returns, made with these threads."""
        before = (torch.get_num_threads(), numba.get_num_threads())
        # Neither `with` nor a function of ours after `finally:`, since a signal that comes in as it begins skips it.
        try:
            _set_threads(*self._threads)
            return work()
        finally:
            try:
                _set_threads(*before)
            except BaseException:
                _set_threads(*before)
                raise


def _set_threads(of_torch: int, of_numba: int) -> None:
    torch.set_num_threads(of_torch)
    numba.set_num_threads(of_numba)
