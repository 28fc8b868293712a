"""Lanes of a step on a GPU: a stream each, and events between them. The same calls run at once or under capture.

Where there is no GPU, every lane is the calling thread and nothing has to be waited for.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from sparda_core.plan import Lane

_Made = TypeVar("_Made")


class Lanes(abc.ABC):
    """Where operations are issued, and how a lane waits for an operation of another."""

    @abc.abstractmethod
    def step(self, work: Callable[[], _Made]) -> _Made:
        """What `work` returns; what it issues goes to the compute lane."""

    @abc.abstractmethod
    def on(self, lane: Lane) -> AbstractContextManager[object]:
        """What is issued inside goes to `lane`; to be used by the work of a `step`."""

    @abc.abstractmethod
    def mark(self, lane: Lane, name: str) -> None:
        """Give what was issued to `lane` so far a name, for `wait`."""

    @abc.abstractmethod
    def wait(self, lane: Lane, name: str) -> None:
        """What is issued to `lane` from now on starts after what `name` marked."""

    @abc.abstractmethod
    def hear(self, name: str) -> None:
        """Let the calling thread wait for what `name` marked: it has ended, and the host sees all that it wrote, so
        whatever is issued to any lane from now on starts after it. A device that has failed raises here.
        """

    @abc.abstractmethod
    def settle(self) -> None:
        """Let the calling thread wait until nothing runs any more, on either lane."""


class SerialLanes(Lanes):
    """One thread, no device: an operation has ended when its function returns."""

    def step(self, work: Callable[[], _Made]) -> _Made:
        """Nothing to switch to."""
        return work()

    def on(self, lane: Lane) -> AbstractContextManager[object]:
        """Nothing to switch to."""
        return contextlib.nullcontext()

    def mark(self, lane: Lane, name: str) -> None:
        """Nothing runs later than it was issued."""

    def wait(self, lane: Lane, name: str) -> None:
        """See `mark`."""

    def hear(self, name: str) -> None:
        """See `mark`."""

    def settle(self) -> None:
        """See `mark`."""


class StreamLanes(Lanes):
    """Streams of one device: compute, and copies up. Events are made once and recorded anew in every step."""

    def __init__(self, device: torch.device) -> None:
        # Above the compute stream: a copy's few thread blocks shall not queue behind the waves of a product.
        self._streams = {
            Lane.COMPUTE: torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
            Lane.H2D: torch.cuda.Stream(device, priority=-1),  # type: ignore[no-untyped-call]
        }  # fmt: skip
        self._events: dict[str, torch.cuda.Event] = {}

    @property
    def compute(self) -> torch.cuda.Stream:
        """The stream that a capture begins on."""
        return self._streams[Lane.COMPUTE]

    @property
    def h2d(self) -> torch.cuda.Stream:
        """The copies' stream."""
        return self._streams[Lane.H2D]

    def step(self, work: Callable[[], _Made]) -> _Made:
        """On the compute stream, ordered with the stream of the caller on both sides."""
        device, outside = torch.cuda.current_device(), torch.cuda.current_stream(self.compute.device)
        # What the caller issued to its own stream comes before, what it issues next comes after.
        self.compute.wait_stream(outside)
        # Not `with torch.cuda.stream`: a signal that comes in as its end begins would leave the caller on our stream.
        try:
            torch.cuda.set_stream(self.compute)
            return work()
        finally:
            try:
                self._leave(device, outside)
            except BaseException:
                self._leave(device, outside)
                raise

    def _leave(self, device: int, outside: torch.cuda.Stream) -> None:
        outside.wait_stream(self.compute)
        torch.cuda.set_stream(outside)
        torch.cuda.set_device(device)

    def on(self, lane: Lane) -> AbstractContextManager[object]:
        """That lane's stream."""
        return torch.cuda.stream(self._streams[lane])

    def mark(self, lane: Lane, name: str) -> None:
        """Record an event."""
        if name not in self._events:
            self._events[name] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events[name].record(self._streams[lane])

    def wait(self, lane: Lane, name: str) -> None:
        """Let the stream wait for the event, not the host."""
        self._streams[lane].wait_event(self._events[name])

    def hear(self, name: str) -> None:
        """One call of CUDA, which ends when the event has been reached or the device has failed."""
        self._events[name].synchronize()

    def join(self) -> None:
        """Let the compute stream wait for the copies'. Under capture, the copies' stream joins it first: a stream
        that is not captured cannot be waited for.
        """
        self.mark(Lane.COMPUTE, "fork")
        self.wait(Lane.H2D, "fork")
        self.mark(Lane.H2D, "join")
        self.wait(Lane.COMPUTE, "join")

    def settle(self) -> None:
        """Wait for every stream; a device that has failed raises here."""
        for stream in self._streams.values():
            stream.synchronize()


def lanes_of(device: torch.device) -> Lanes:
    """Lanes for operations on `device`."""
    return StreamLanes(device) if device.type == "cuda" else SerialLanes()
