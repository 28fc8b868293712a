"""Step times of an open session: by events on a GPU, by the host's clock where every operation is awaited anyway."""

from __future__ import annotations

import itertools
import time
from typing import Protocol

import torch

from sparda_core.bench.decode.clock import Clock
from sparda_core.runtimes.gpu.session import GpuSession


class StepClock(Protocol):
    """Times steps in a row."""

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps, unmodified."""


class HostClock:
    """For sessions of kernels that are interpreted on a CPU."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def steps(self, count: int) -> list[float]:
        """See StepClock."""
        took = []
        for _ in range(count):
            began = time.perf_counter()
            self._session.run(1)
            took.append(time.perf_counter() - began)
        return took


class BesideClock:
    """Events on the compute lane, which alone is awaited: what another stream was given goes on meanwhile."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def steps(self, count: int) -> list[float]:
        """See StepClock."""
        first = mark(self._session)
        events = [first]
        for _ in range(count):
            self._session.run(1)
            events.append(mark(self._session))
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) / 1e3 for start, end in itertools.pairwise(events)]


def clock_for(session: GpuSession, *, beside: bool = False) -> StepClock:
    """The clock of a session's device; `beside`: another stream is at work, and not to be waited for."""
    if beside:
        return BesideClock(session)
    return Clock(session) if session.machinery.device.type == "cuda" else HostClock(session)


def mark(session: GpuSession) -> torch.cuda.Event:
    """An event behind everything that the session's compute lane was given; of a CUDA device."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(session.machinery.lanes.compute)  # type: ignore[attr-defined]
    return event
