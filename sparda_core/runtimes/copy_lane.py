"""CopyLane: a worker thread that moves blocks while the calling thread computes.

On a CPU it plays the h2d stream. The thread runs compiled copies that release the GIL, and no torch: one
torch operation there slows the computing thread for as long as the worker lives.

An emulated link costs the thread nothing: it copies at once and writes down when the link would have
brought the last byte; whoever waits sleeps until then. A thread that slept through its own schedule
would wake up late for every job, and take a core from the compute lane each time.

A signal's handler may raise at any call of the computing thread. So it takes no lock that it would have to give back:
it puts jobs into a queue of C's and waits at latches; whatever it has lost sight of, `drain` still waits for.
"""

from __future__ import annotations

import _thread
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

import attrs
import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError, LaneError
from sparda_core.kernels.checks import require_ids
from sparda_core.kernels.gather.cpu import gather_blocks
from sparda_core.latch import Latch
from sparda_core.runtimes.link import LinkSchedule

_NS = 1_000_000_000
#: A piece is the most that moves between two looks at the clock: its copy takes tens of microseconds,
#: the bookkeeping after it a few.
_PIECE_BYTES = 512 * 1024


class Job(Protocol):
    """Something that moves in units of equal size."""

    @property
    def units(self) -> int:
        """How many units have to move."""

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit on the link."""

    def run(self, start: int, stop: int) -> None:
        """Move units start .. stop - 1; called on the lane's thread, without torch."""


@attrs.frozen(kw_only=True, eq=False)
class CopyJob:
    """Copy blocks source[source_ids[i]] to target[target_ids[i]], in order of i.

    source, target  [n, 2, block, D] and [m, 2, block, D], of one dtype, C-contiguous
    source_ids      int64 [k], in [0, n)
    target_ids      int64 [k], in [0, m), none twice
    Raises ConfigError where ids or arrays do not fit: the copy itself trusts them as addresses.
    """

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    source_ids: npt.NDArray[np.int64]
    target_ids: npt.NDArray[np.int64]

    def __attrs_post_init__(self) -> None:
        if self.source.shape[1:] != self.target.shape[1:] or self.source.dtype != self.target.dtype:
            raise ConfigError(
                f"source {self.source.dtype}{list(self.source.shape)} and target {self.target.dtype}"
                f"{list(self.target.shape)} must have blocks of one shape and dtype"
            )
        if self.source_ids.shape != self.target_ids.shape or self.source_ids.ndim != 1:
            raise ConfigError(f"source_ids {self.source_ids.shape} and target_ids {self.target_ids.shape} must be [k]")
        require_ids(self.source_ids, "source_ids", low=0, high=self.source.shape[0])
        require_ids(self.target_ids, "target_ids", low=0, high=self.target.shape[0])

    @property
    def units(self) -> int:
        """Blocks to move."""
        return self.source_ids.size

    @property
    def unit_bytes(self) -> int:
        """Bytes of K and V of one block."""
        return int(np.prod(self.source.shape[1:])) * self.source.itemsize

    def run(self, start: int, stop: int) -> None:
        """Copy blocks start .. stop - 1 of the list."""
        gather_blocks(self.source, self.target, self.source_ids, self.target_ids, start, stop)


class CopyTicket:
    """A job on its way. Times are nanoseconds of the lane's clock; 0 until known.

    units     how many units the job has
    start_ns  when the job had the link
    end_ns    when its last unit arrived, or will arrive
    error     what stopped it, if anything did
    """

    def __init__(self, job: Job, worker: _Worker) -> None:
        self.units, self.submitted_ns = job.units, worker.clock_ns()
        self.start_ns = self.end_ns = 0
        self.error: BaseException | None = None
        self.copied = 0  # set by the lane; on an emulated link, copied before it has arrived
        self._unit_bytes = job.unit_bytes  # not the job: a ticket must not keep a tier alive
        self._ended = Latch()
        self._worker = worker

    @property
    def moved(self) -> int:
        """Units that have arrived so far: on an emulated link, by its schedule."""
        copied = self.copied
        if self.done():
            return copied
        arrived = self._worker.link.arrived_bytes(start_ns=self.start_ns, now_ns=self._worker.clock_ns())
        return copied if arrived is None else min(copied, arrived // self._unit_bytes)

    def done(self) -> bool:
        """Whether every unit has arrived, or none will any more."""
        return self._ended.is_open and (self.error is not None or self._worker.clock_ns() >= self.end_ns)

    def wait(self) -> None:
        """Block until every unit has arrived; raises LaneError, from its cause, where that will not happen."""
        self.settle()
        if self.error is not None:
            raise LaneError(f"copy stopped after {self.moved} of {self.units} blocks: {self.error}") from self.error
        while (left_ns := self.end_ns - self._worker.clock_ns()) > 0:
            self._worker.sleep_s(left_ns / _NS)

    def settle(self) -> None:
        """Block until nothing is being written any more, whether all of it arrived or not."""
        while not self._ended.nap():
            if not self._worker.alive:
                # The thread may have ended this ticket between the two looks.
                if not self._ended.is_open:
                    self.end(LaneError("the copy lane's thread has died"), now_ns=self.start_ns)
                return

    def end(self, error: BaseException | None, *, now_ns: int) -> None:
        """Called by the lane: nothing is written after this. A ticket that has ended stays as it ended."""
        if not self._ended.is_open:
            self.error, self.end_ns = error, now_ns
            self._ended.open()


class CopyLane:
    """One thread, one job after the other, in the order submitted.

    link_bytes_per_s  emulated speed of the link; None: as fast as the machine copies
    clock_ns, sleep_s  the clock of all times, and how to wait on it; for tests

    Only the computing thread may submit and close. Closing stops the running job at its next piece.
    """

    def __init__(
        self, *, link_bytes_per_s: float | None = None, clock_ns: Callable[[], int] = time.perf_counter_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._make = functools.partial(_Worker, LinkSchedule(link_bytes_per_s), clock_ns, sleep_s)
        self.submitted = 0  # units of all jobs so far
        self._begin()

    def _begin(self) -> None:
        worker = self._make()
        # The thread knows the worker but not the lane, so that a lane nobody closed is collected and its thread ends.
        weakref.finalize(self, worker.stop)
        try:
            worker.start()
            self._worker, self._thread = worker, worker.thread
        except BaseException:
            worker.stop()
            raise

    def mend(self) -> None:
        """Give a lane whose thread has died another one. For whoever has told of the death, and undone what it cut."""
        if not self._worker.stopping and not self._worker.alive:
            self._begin()

    def submit(self, job: Job) -> CopyTicket:
        """Queue a job; a job without units is done at once. Raises LaneError on a lane that is closed or broken.

        Where a signal interrupts it, the job was queued and counted, or neither; `drain` waits for it.
        """
        if self._worker.stopping:
            raise LaneError("copy lane is closed; open a new session")
        if not self._worker.alive:
            raise LaneError("copy lane is broken: its thread has died") from self._worker.broken
        ticket = CopyTicket(job, self._worker)
        if ticket.units:
            # No call in between.
            self.submitted += ticket.units
            self._worker.jobs.put((ticket, job))
        else:
            ticket.start_ns = ticket.submitted_ns
            ticket.end(None, now_ns=ticket.submitted_ns)
        return ticket

    def drain(self) -> None:
        """Block until nothing submitted is being written any more, whoever holds its ticket."""
        fence = CopyTicket(_Fence(), self._worker)
        self._worker.jobs.put((fence, None))
        fence.settle()

    def close(self) -> None:
        """Stop the thread and wait for its end; jobs not finished end with a LaneError. Closing twice is allowed."""
        self._worker.stop()
        while self._worker.alive:
            self._worker.ended.nap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stopped(Exception):  # noqa: N818 - a signal, not a failure
    """The lane was closed under a job."""


class _Fence:
    """No job: its ticket ends once the jobs before it have."""

    units, unit_bytes = 0, 0

    def run(self, start: int, stop: int) -> None:
        """Nothing to move."""


class _Worker:
    """What the thread runs, and all that it shares with the lane."""

    def __init__(self, link: LinkSchedule, clock_ns: Callable[[], int], sleep_s: Callable[[float], None]) -> None:
        self.link, self.clock_ns, self.sleep_s = link, clock_ns, sleep_s
        self.jobs: queue.SimpleQueue[tuple[CopyTicket, Job | None] | None] = queue.SimpleQueue()
        self.stopping = False
        self.broken: BaseException | None = None
        self.began, self.ended = Latch(), Latch()
        self.thread = threading.Thread(target=self.serve, name="sparda-copy-lane", daemon=True)
        self._process = os.getpid()

    @property
    def alive(self) -> bool:
        """Whether the thread still takes jobs; a copy of the process (os.fork) has no such thread."""
        # Not Thread.is_alive: a signal inside of it can make a living thread count as ended.
        return not self.ended.is_open and os.getpid() == self._process

    def start(self) -> None:
        """Start the thread and wait until it runs; raises LaneError where there can be none."""
        # Thread.start holds locks in Python code, and signals come to the main thread alone: another one calls it.
        _thread.start_new_thread(self._launch, ())
        while not self.began.nap():
            pass
        if self.ended.is_open:
            raise LaneError(f"copy lane has no thread: {self.broken}") from self.broken

    def _launch(self) -> None:
        try:
            self.thread.start()
        except BaseException as wrong:  # noqa: BLE001 - raised by `start`
            self.broken = wrong
            self._abandon()
            self.ended.open()
            self.began.open()

    def stop(self) -> None:
        """Make the thread end soon."""
        self.stopping = True
        self.jobs.put(None)

    def serve(self) -> None:
        """Run jobs until the lane is closed; end every ticket, whatever happens."""
        self.began.open()
        running: CopyTicket | None = None
        try:
            while (item := self.jobs.get()) is not None:
                running = item[0]
                self._carry(*item)
                del item
        except BaseException as wrong:  # noqa: BLE001 - kept, and raised where somebody waits
            # Not an error of a job (those end with their ticket): the thread itself was told to die.
            self.broken = wrong
            if running is not None:
                running.end(wrong, now_ns=self.clock_ns())
        self._abandon()
        self.ended.open()

    def _carry(self, ticket: CopyTicket, job: Job | None) -> None:
        if job is None:
            ticket.end(None, now_ns=ticket.submitted_ns)
            return
        try:
            self._move(ticket, job)
        except Exception as wrong:  # noqa: BLE001 - raised by the ticket's wait
            error = LaneError("the lane was closed") if isinstance(wrong, _Stopped) else wrong
            ticket.end(error, now_ns=self.clock_ns())

    def _move(self, ticket: CopyTicket, job: Job) -> None:
        piece = max(1, _PIECE_BYTES // job.unit_bytes)
        ticket.start_ns = self.link.begin(submitted_ns=ticket.submitted_ns, now_ns=self.clock_ns())
        for start in range(0, ticket.units, piece):
            if self.stopping:
                raise _Stopped
            stop = min(start + piece, ticket.units)
            job.run(start, stop)
            ticket.copied = stop
        ticket.end(None, now_ns=self.link.arrival(ticket.units * job.unit_bytes, now_ns=self.clock_ns()))

    def _abandon(self) -> None:
        """End what is still queued, so that nobody waits for it."""
        while True:
            try:
                item = self.jobs.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                reason = "the lane was closed" if self.broken is None else f"the lane's thread died: {self.broken!r}"
                item[0].end(LaneError(reason), now_ns=self.clock_ns())
