"""Every test of this folder ends within a bound, or says where every thread stood; and leaves no thread behind."""

from __future__ import annotations

import faulthandler
import signal
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.profiles import NIGHTLY

#: Longest that a test may take. Far more than the slowest needs on a busy machine: what hits it, hangs. A night tries
#: every moment of a call, not four.
BOUND_S = 1800.0 if NIGHTLY else 120.0


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
def _leaves_the_modes_of_torch_as_they_were() -> Iterator[None]:
    def modes() -> tuple[bool, bool]:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    before = modes()
    yield
    assert modes() == before, "a cut has left torch's inference mode, or its gradients, switched"


@pytest.fixture(autouse=True)
def _leaves_no_lane_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    lanes = [thread for thread in threading.enumerate() if thread.name == "sparda-copy-lane" and thread not in before]
    for thread in lanes:
        thread.join(10)
    assert not [thread for thread in lanes if thread.is_alive()], "a copy lane outlives its session"
