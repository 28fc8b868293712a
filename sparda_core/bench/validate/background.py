"""A second stream on the link: host to device by the copy engine, with pauses, while steps are timed. Loads torch."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

import torch

#: Bytes of a copy, and copies in one captured piece of some ten milliseconds.
CHUNK_BYTES, CHUNKS = 2 << 20, 96
#: What the copy engine reaches of the link; how long a copy is, to begin with.
_FULL_BYTES_PER_S = 54e9
#: Cycles of a spinning kernel a second, to begin with.
_CYCLES_PER_S = 1.7e9
#: How much longer than the steps are expected to take it goes on.
_MARGIN = 1.3


class Background:
    """Takes about so many bytes a second of the link; what it did take is measured.

    memory       uint8, pinned, read from its end
    bytes_per_s  wanted; pauses between copies are spun away by one thread of a kernel
    """

    def __init__(self, memory: torch.Tensor, device: torch.device, bytes_per_s: float) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        source = memory[-min(memory.numel() // CHUNK_BYTES, CHUNKS) * CHUNK_BYTES :]
        self._sources = torch.split(source, CHUNK_BYTES)
        self._target = torch.empty(CHUNK_BYTES, dtype=torch.uint8, device=device)
        self._events: list[torch.cuda.Event] = []
        pause_s = max(0.0, CHUNK_BYTES / bytes_per_s - CHUNK_BYTES / _FULL_BYTES_PER_S)
        self._graph = self._capture(round(pause_s * _CYCLES_PER_S))
        # Once more: how long a cycle and a copy's launch are is this GPU's affair.
        short_s = CHUNKS * CHUNK_BYTES / bytes_per_s - self._alone_s()
        cycles = (pause_s + short_s / CHUNKS) * _CYCLES_PER_S
        self._graph = self._capture(max(0, round(cycles)))
        self._each_s = self._alone_s()

    def _capture(self, cycles: int) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for at in range(CHUNKS):
                self._target.copy_(self._sources[at % len(self._sources)], non_blocking=True)
                if cycles:
                    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001
        return graph

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _alone_s(self) -> float:
        """Seconds of one piece with nothing beside it."""
        with torch.cuda.stream(self._stream):
            self._graph.replay()
            start = self._event()
            self._graph.replay()
            end = self._event()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def start(self, seconds: float) -> None:
        """Copy for about so long, and some more; nothing is awaited."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            self._events = [self._event()]
            for _ in range(math.ceil(seconds * _MARGIN / self._each_s) + 2):
                self._graph.replay()
                self._events.append(self._event())

    def taken_bytes_per_s(self, until: torch.cuda.Event) -> float | None:
        """Bytes a second that it took up to an event; None where it had ended before, or just begun."""
        torch.cuda.synchronize()
        ends = [float(self._events[0].elapsed_time(event)) / 1e3 for event in self._events[1:]]
        limit = float(self._events[0].elapsed_time(until)) / 1e3
        whole = [end for end in ends if end <= limit]
        if len(whole) in (0, len(ends)):
            return None
        return len(whole) * CHUNKS * CHUNK_BYTES / whole[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.cuda.synchronize()
