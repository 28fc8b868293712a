"""When operations ran: for timelines, in steps of their own, never in those whose time is quoted."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from sparda_core.plan import Op
from sparda_core.spans import Span, Timeline

if TYPE_CHECKING:
    from sparda_core.runtimes.gpu.executor import Issue


class Clock(abc.ABC):
    """Takes two readings around every operation of a step."""

    def __init__(self) -> None:
        self._ops: dict[str, Op] = {}

    @abc.abstractmethod
    def read(self, label: str) -> None:
        """Take a reading on the lane that is current."""

    @abc.abstractmethod
    def elapsed_ns(self, start: str, label: str) -> int:
        """Nanoseconds from reading `start` to reading `label`; waits for the device."""

    def around(self, table: Mapping[str, Issue]) -> dict[str, Issue]:
        """The same bindings, with readings."""
        return {kind: self._around(run) for kind, run in table.items()}

    def _around(self, run: Issue) -> Callable[[Op], None]:
        def timed(op: Op) -> None:
            self._ops[op.name] = op
            self.read(f"start of {op.name}")
            run(op)
            self.read(f"end of {op.name}")

        return timed

    def timeline(self) -> Timeline | None:
        """Spans of the last step; None before the first."""
        if not self._ops:
            return None
        origin = f"start of {next(iter(self._ops))}"
        spans = []
        for name, op in self._ops.items():
            start, end = (self.elapsed_ns(origin, f"{edge} of {name}") for edge in ("start", "end"))
            spans.append(
                Span(name=name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=start, end_ns=max(start, end))
            )
        return Timeline(label="measured", spans=spans)


class DeviceClock(Clock):
    """Events of the device."""

    def __init__(self) -> None:
        super().__init__()
        self._events: dict[str, torch.cuda.Event] = {}

    def read(self, label: str) -> None:
        """Record an event."""
        if label not in self._events:
            self._events[label] = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._events[label].record()

    def elapsed_ns(self, start: str, label: str) -> int:
        """Resolution: about half a microsecond."""
        self._events[label].synchronize()
        elapsed_ms: float = self._events[start].elapsed_time(self._events[label])
        return max(0, round(elapsed_ms * 1e6))


class HostClock(Clock):
    """The clock of the calling thread."""

    def __init__(self) -> None:
        super().__init__()
        self._readings: dict[str, int] = {}

    def read(self, label: str) -> None:
        """Note the time."""
        self._readings[label] = time.perf_counter_ns()

    def elapsed_ns(self, start: str, label: str) -> int:
        """A difference of two notes."""
        return self._readings[label] - self._readings[start]


def clock_of(device: torch.device) -> Clock:
    """A clock for operations on `device`."""
    return DeviceClock() if device.type == "cuda" else HostClock()
