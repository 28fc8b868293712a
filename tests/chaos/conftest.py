"""Every test of this folder ends within a bound, or says where every thread stood; and leaves no thread behind."""

from __future__ import annotations

import faulthandler
import gc
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

#: Guards that undo guards that were cut.
_KEPT: list[Any] = []
#: Longest that a test may take. Far more than the slowest needs on a busy machine: what hits it, hangs.
BOUND_S = 120.0


def _hangs(*_: Any) -> None:
    with tempfile.TemporaryFile("w+") as told:
        faulthandler.dump_traceback(told, all_threads=True)
        told.seek(0)
        raise TimeoutError(f"nothing came of it within {BOUND_S:.0f} s; the threads stood at\n{told.read()}")


@pytest.fixture(autouse=True)
def _ends_within_its_bound() -> Iterator[None]:
    # A thread that waits for a lock in vain still takes signals: a deadlock of ours becomes an error with its place.
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, BOUND_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _torch_goes_on_as_before() -> Iterator[None]:
    """A real signal can come in the midst of a guard of torch's, which then never ends: here it ends with the test."""
    yield
    gc.collect()
    if torch.is_inference_mode_enabled():
        guard = torch._C._InferenceMode(False)
        guard.__enter__()  # type: ignore[no-untyped-call]
        _KEPT.append(guard)  # it would end with its last reference
    torch.set_grad_enabled(True)


@pytest.fixture(autouse=True)
def _leaves_no_lane_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    lanes = [thread for thread in threading.enumerate() if thread.name == "sparda-copy-lane" and thread not in before]
    for thread in lanes:
        thread.join(10)
    assert not [thread for thread in lanes if thread.is_alive()], "a copy lane outlives its session"
