"""Lanes: how far one lane gets at one instant: waits, launch gap, queue, SMs, latency, flows."""

from __future__ import annotations

from collections.abc import Callable

from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.layout import Layout
from sparda_core.simulator.machine import FLOW_BITS, Machine, Situation
from sparda_core.simulator.slots import Slots
from sparda_core.simulator.track import (
    DONE,
    FREE,
    ISSUE,
    LATENCY,
    LAUNCH,
    PROGRAM,
    QUEUE,
    SEAT,
    Track,
)  # fmt: skip


class Lanes:
    """All lanes of a step, and what they share besides the clock.

    side, main  lanes other than compute lanes; compute lanes
    running     what runs now, in the order it started; an operation that runs by a program aside
    situation   the same as Machine.solve wants it; out of date while `stale`
    stale       whether anything changed that slowdowns and rates depend on
    plans       whether operations of the compute lane may run by programs
    """

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self.layout, self.machine = layout, machine
        self.side: list[Track] = []
        self.main: list[Track] = []
        self.running: list[Track] = []
        self.situation: Situation = ()
        self.stale = self.plans = False
        self.slots = Slots(machine, self)
        # Lanes that have not ended; whether an operation ended since this was last asked.
        self.lanes_open = 0
        self._ended = False
        # Replicas whose compute lane is at work, as bits; None where no copy kernel's rate depends on it.
        self.at_work: int | None = None
        self._queues: dict[tuple[int, str], Track | None] = {}
        self._queued: list[tuple[int, int, Track]] = []

    def look(self) -> Situation:
        """Bring the situation up to date."""
        alike = self.machine.alike
        running = [alike[track.part] << FLOW_BITS | track.mask for track in self.running]
        if self.at_work is not None and running:
            running.append(-1 - self.at_work)
        self.situation = situation = tuple(running)
        return situation

    def progress(self, track: Track, now_ns: int) -> bool:
        """Take a lane as far as it gets at this instant; True where it got anywhere.

        A compute lane stops after each operation: copies that wait are placed before its next one.
        """
        moved = False
        while _STEPS[track.state](self, track, now_ns):
            moved = True
            if track.state == FREE and track.compute:
                break
        return moved

    def _free(self, track: Track, now_ns: int) -> bool:
        track.due_ns = NEVER
        if track.head == len(track.ops):
            track.state = DONE
            self.lanes_open -= 1
            return False
        op = track.ops[track.head]
        ends = track.ledger.ends
        for wait in self.layout.waits[op]:
            if ends[wait] < 0:
                return False
        track.op, track.cost = op, track.costs[op]
        track.waited_ns = now_ns - track.free_ns
        if track.issued is not None:
            track.state = ISSUE
            return True
        track.due_ns = now_ns + track.cost.launches_in_ns(track.waited_ns)
        track.state = LAUNCH
        return track.due_ns == now_ns

    def _issue(self, track: Track, now_ns: int) -> bool:
        assert track.issued is not None
        track.due_ns = track.issued[track.op]
        if track.due_ns > now_ns:
            return False
        track.due_ns = now_ns + track.cost.launches_in_ns(track.waited_ns)
        track.state = LAUNCH
        return True

    def _launch(self, track: Track, now_ns: int) -> bool:
        if track.due_ns > now_ns:
            return False
        track.due_ns = NEVER
        if track.cost.skips:
            self._close(track, now_ns)
        elif track.cost.queue:
            self._queued.append((now_ns, track.op, track))
            track.state = QUEUE
        else:
            self._want_seat(track, now_ns)
        return True

    def _serve(self, now_ns: int) -> bool:
        """Let the first of every free queue go on."""
        served = False
        for entry in sorted(self._queued, key=lambda entry: entry[:2]):
            track = entry[2]
            queue = track.replica, track.cost.queue
            if self._queues.get(queue) is None:
                self._queues[queue] = track
                self._queued.remove(entry)
                self._want_seat(track, now_ns)
                served = True
        return served

    def _want_seat(self, track: Track, now_ns: int) -> None:
        track.state, track.wanted_ns = SEAT, now_ns
        if track.cost.places:
            self.slots.wait(track)

    def _seat(self, track: Track, now_ns: int) -> bool:
        if track.cost.grid is not None and not self.slots.seated(track):
            return False
        if not (self.plans and track.compute and not track.cost.places and self.plan(track, now_ns)):
            self.begin(track, now_ns)
        return True

    def begin(self, track: Track, now_ns: int) -> None:
        """Begin the operation at a lane's head, which has its SMs."""
        cost = track.cost
        track.start_ns = now_ns
        track.due_ns = now_ns + cost.latency_ns
        track.state = LATENCY
        if cost.sizes:
            # Held from the start: a copy kernel takes its SMs before its first byte moves.
            track.part = cost.part
            if cost.grid is not None:
                track.part = self.machine.part(cost, track.stand, track.lag)
            self.running.append(track)
            self.stale = True

    def plan(self, track: Track, now_ns: int) -> bool:
        """Begin the operation at the compute lane's head, which has its SMs, by its program; False if it has none."""
        cost = track.cost
        part = cost.part if track.lag == 1 else self.machine.part(cost, 0, track.lag)
        beside = self.look() if self.stale else self.situation
        program = self.machine.program(beside, part)
        # What moves nothing and takes no time ends in the turn in which it begins.
        if program is None or not (program.span_ns or cost.mask):
            return False
        track.program, track.beside, track.part, track.state = program, beside, part, PROGRAM
        track.start_ns, track.due_ns = now_ns, now_ns + program.span_ns
        return True

    def _latency(self, track: Track, now_ns: int) -> bool:
        if track.due_ns > now_ns:
            return False
        track.open_flows(now_ns)
        self.stale = True
        return True

    def _flows(self, track: Track, now_ns: int) -> bool:
        if track.retakes:
            self.slots.retake(track)
        if track.live:
            return False
        self.end(track, now_ns)
        return True

    def pass_flows(self, track: Track, now_ns: int) -> None:
        """End the flows of a lane that are due, and its operation with the last of them."""
        if track.state == PROGRAM:
            self.end(track, now_ns)
            return
        track.end_flows(now_ns)
        self.stale = True
        if not track.live:
            self.end(track, now_ns)

    def end(self, track: Track, now_ns: int) -> None:
        """End the operation at a lane's head, all of whose flows have ended."""
        op, ledger = track.op, track.ledger
        ledger.starts[op] = track.start_ns
        if track.state == PROGRAM:
            assert track.program is not None
            ledger.flow_ends[op] = track.program.flow_ends
        else:
            # Every flow of an operation that ends has ended.
            start_ns = track.flow_ns
            ledger.flow_ends[op] = tuple([(flow.end_ns or 0) - start_ns for flow in track.flows])
            if track.cost.sizes:
                self.running.remove(track)
                self.stale = True
        if track.cost.grid is not None:
            self.slots.leave(track)
        if track.cost.queue:
            self._queues[track.replica, track.cost.queue] = None
        track.flows, track.mask = [], 0
        self._close(track, now_ns)

    def _close(self, track: Track, now_ns: int) -> None:
        track.ledger.ends[track.op] = track.free_ns = now_ns
        track.head += 1
        track.state = FREE
        self._ended = True

    def _stay(self, track: Track, now_ns: int) -> bool:
        return False


# By state.
_STEPS: tuple[Callable[[Lanes, Track, int], bool], ...] = (
    Lanes._free, Lanes._issue, Lanes._launch, Lanes._stay, Lanes._seat, Lanes._latency, Lanes._flows,  # noqa: SLF001
    Lanes._stay, Lanes._stay,  # noqa: SLF001
)  # fmt: skip
