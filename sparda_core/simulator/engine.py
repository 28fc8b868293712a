"""Engine: one step in virtual time. Lanes are tracks of small states; an instant is settled at once.

SimPy's event loop calls at every instant at which something is due: a flow's last unit, the end of a
launch gap or of a latency, a boundary between two kernels for which somebody waits. In an instant

1. flows that are due end, and operations with their last one: their SMs and their queue are free;
2. lanes other than compute lanes get as far as they can; queues serve whoever was ready first (ties: plan
   order); copy kernels' thread blocks that wait are placed;
3. compute lanes get as far as they can, one operation at a time: a compute kernel takes its SMs after the
   copies that waited for them;
4. if an operation ended on the way, again from 2; then slowdowns and rates are solved, once, and the next call is armed.

So simultaneous events have an order of their own, whatever order they were armed in.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

from sparda_core.simulator.ahead import run_ahead
from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.host import Host
from sparda_core.simulator.layout import Layout
from sparda_core.simulator.link import Wake
from sparda_core.simulator.machine import FLOW_BITS, Bill, Machine, Situation
from sparda_core.simulator.slots import Slots
from sparda_core.simulator.track import (
    AT_WORK, DONE, FLOWS, FREE, ISSUE, LATENCY, LAUNCH, QUEUE, SEAT, Ledger, Track,
)  # fmt: skip

Observer = Callable[[int, dict[str, float]], None]


class Engine:
    """One step of a plan on a machine, from time 0.

    observer  called at every instant with (now in ns, units per second taken from each resource); where
              SMs are modelled, `sms_compute` and `sms_copy` are how many are held
    coalesce  run the compute lane over operations that nothing else can touch without asking SimPy's loop
              for each; changes nothing but speed
    """

    def __init__(
        self, layout: Layout, bill: Bill, machine: Machine, observer: Observer | None = None, *, coalesce: bool = True
    ) -> None:
        self.machine, self.layout, self._observer = machine, layout, observer
        self.side: list[Track] = []
        self.main: list[Track] = []
        self._hosts: list[Host] = []
        self.ledgers = [self._add_replica(replica, bill) for replica in range(machine.replicas)]
        self.tracks = [*self.side, *self.main]
        self._open = len(self.tracks)
        # What runs now, in the order it started.
        self.running: list[Track] = []
        # Whether anything changed that slowdowns and rates depend on.
        self.stale = False
        # Replicas whose compute lane is at work, as bits; None where no copy kernel's rate depends on it.
        self._ended = False
        self._solved = machine.solved
        self._at_work = 0 if bill.caps else None
        self._queues: dict[tuple[int, str], Track | None] = {}
        self._queued: list[tuple[int, int, Track]] = []
        self.slots = Slots(machine, self)
        self._env = simpy.Environment()
        self._wake = Wake(self._env, self._instant)
        self._over = self._env.event()
        waits = any(host.waits for host in self._hosts)
        self._ahead = coalesce and observer is None and machine.replicas == len(self.main) == 1 and not waits

    def _add_replica(self, replica: int, bill: Bill) -> Ledger:
        layout, costs = self.layout, bill.costs[replica]
        ledger = Ledger(len(costs))
        host = Host(costs, layout.after, ledger.ends) if bill.host else None
        if host is not None:
            self._hosts.append(host)
        for number, ops in enumerate(layout.lanes):
            compute = layout.compute and number == len(layout.lanes) - 1
            track = Track(ops, costs, ledger, replica, compute=compute)
            track.issued = None if host is None else host.issued_ns
            (self.main if compute else self.side).append(track)
        return ledger

    def run(self) -> int:
        """Run to the end; when the last lane ended (ns). The ledgers say the rest."""
        self._instant(0)
        # Stops with the last lane: a wake-up that is still armed must not prolong the step.
        self._env.run(until=self._over)
        return max(max(ledger.ends) for ledger in self.ledgers)

    # One instant.

    def _instant(self, now_ns: int) -> None:
        for track in self.tracks:
            if track.due_ns <= now_ns and track.state == FLOWS:
                track.end_flows(now_ns)
                self.stale = True
                if not track.live:
                    self.end(track, now_ns)
        slots = self.slots
        if slots.due_ns <= now_ns:
            slots.pass_boundaries(now_ns)
        self.settle(now_ns)
        self.solve(now_ns)
        if self._ahead and self._open:
            run_ahead(self)
        if self._observer is not None:
            self._observer(now_ns, {**self.usage(), **slots.usage()})
        if not self._open:
            self._over.succeed()
            return
        due_ns = slots.due_ns
        for track in self.tracks:
            if track.due_ns < due_ns:  # noqa: PLR1730 - a call of min costs more than the rest of the loop
                due_ns = track.due_ns
        self._wake.at(due_ns)

    def settle(self, now_ns: int) -> None:
        """Take every lane as far as it gets at this instant."""
        self._ended = True
        while self._ended:
            self._ended = False
            for track in self.side:
                if track.due_ns <= now_ns or track.state in _ASKS:
                    self.progress(track, now_ns)
            if self._queued and self._serve(now_ns):
                self._ended = True
            if self.slots.waiting and self.slots.place():
                self._ended = True
            for track in self.main:
                if track.due_ns <= now_ns or track.state in _ASKS or track.retakes:
                    self.progress(track, now_ns)
            for host in self._hosts:
                if host.waits and host.go_on():
                    self._ended = True

    def situation(self) -> Situation:
        """What runs now, as Machine.solve wants it."""
        running = [track.part << FLOW_BITS | track.mask for track in self.running]
        if self._at_work is not None and running:
            running.append(-1 - self._at_work)
        return tuple(running)

    def solve(self, now_ns: int) -> None:
        """Bring slowdowns, rates and boundaries up to date, where anything changed that they depend on."""
        if self._at_work is not None:
            work = 0
            for track in self.main:
                if track.state in AT_WORK:
                    work |= 1 << track.replica
            if work != self._at_work:
                self._at_work = work
                self.stale = True
        if not self.stale:
            return
        self.stale = False
        running = self.running
        if running:
            situation = self.situation()
            # By memory, or worked out.
            solution = self._solved.get(situation) or self.machine.solve(situation)
            for track, rates in zip(running, solution, strict=True):
                if track.live:
                    track.set_rates(rates, now_ns)
        if self.slots.restless:
            self.slots.arm(now_ns)

    def usage(self) -> dict[str, float]:
        """Units per second now taken from each resource."""
        taken = dict.fromkeys(self.machine.rates.capacity, 0.0)
        for track in self.running:
            for flow in track.live:
                for name, amount in track.cost.demands[flow.kind].uses:
                    taken[name] += flow.rate * amount
        return taken

    # One lane.

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
            self._open -= 1
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
        self.begin(track, now_ns)
        return True

    def begin(self, track: Track, now_ns: int) -> None:
        """Begin the operation at a lane's head, which has its SMs."""
        track.start_ns = now_ns
        if track.cost.sizes:
            # Held from the start: a copy kernel takes its SMs before its first byte moves.
            track.part = track.cost.part
            if track.cost.grid is not None:
                track.part = self.machine.part(track.cost, len(track.placed), track.lag)
            self.running.append(track)
            self.stale = True
        track.due_ns = now_ns + track.cost.latency_ns
        track.state = LATENCY

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

    def end(self, track: Track, now_ns: int) -> None:
        """End the operation at a lane's head, all of whose flows have ended."""
        start_ns, op, ledger = track.flow_ns, track.op, track.ledger
        ledger.starts[op] = track.start_ns
        # Every flow of an operation that ends has ended.
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


#: States that no time ends: they end with something else.
_ASKS = frozenset({FREE, ISSUE, SEAT})
# By state.
_STEPS = (
    Engine._free, Engine._issue, Engine._launch, Engine._stay, Engine._seat, Engine._latency, Engine._flows,  # noqa: SLF001
    Engine._stay,  # noqa: SLF001
)  # fmt: skip
