"""Engine: one step in virtual time. Lanes are tracks of small states; an instant is settled at once.

SimPy's event loop calls at every instant at which something is due: a flow's last unit, the end of a
launch gap or of a latency, a boundary between two kernels for which somebody waits. In an instant

1. flows that are due end, and so do operations whose last flow it was: SMs and queues are free again;
2. lanes other than compute lanes get as far as they can; queues serve whoever was ready first (ties: plan
   order); copy kernels' thread blocks that wait are placed;
3. compute lanes get as far as they can: a compute kernel takes its SMs after the copies;
4. if anything ended on the way, again from 2; then rates are solved, once, and the next call is armed.

So simultaneous events have an order of their own, whatever order they were armed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy

from sparda_core.simulator.ahead import run_ahead
from sparda_core.simulator.fluid import NEVER, Flow, Fluid
from sparda_core.simulator.host import Host, needs_host
from sparda_core.simulator.layout import Layout
from sparda_core.simulator.link import Wake
from sparda_core.simulator.machine import Cost, Machine
from sparda_core.simulator.slots import Slots
from sparda_core.simulator.track import AT_WORK, Ledger, State, Track

Observer = Callable[[int, dict[str, float]], None]


class Engine:
    """One step of a plan on a machine, from time 0.

    costs     of each replica, each operation
    observer  called at every instant with (now in ns, units per second taken from each resource); where
              SMs are modelled, `sms_compute` and `sms_copy` are how many are held
    coalesce  run the compute lane over operations that nothing else can touch without calling SimPy's
              loop for each; changes nothing but speed
    """

    def __init__(
        self, layout: Layout, costs: Sequence[Sequence[Cost]], machine: Machine, observer: Observer | None = None, *,
        coalesce: bool = True,
    ) -> None:  # fmt: skip
        self.machine, self.layout, self._observer = machine, layout, observer
        self.fluid = Fluid(machine.rates)
        self.ledgers = [Ledger(len(own)) for own in costs]
        self.side: list[Track] = []
        self.main: list[Track] = []
        self._hosts: list[Host] = []
        for replica, (own, ledger) in enumerate(zip(costs, self.ledgers, strict=True)):
            self._add_replica(replica, own, ledger)
        self.tracks = [*self.side, *self.main]
        self._open = len(self.tracks)
        # What runs now, in the order it started; what slows it is worked out again when it is stale.
        self.running: list[Track] = []
        self.stale = False
        self._at_work = [False] * len(costs)
        self._caps = any(cost.caps for own in costs for cost in own)
        self._queues: dict[tuple[int, str], Track | None] = {}
        self._queued: list[tuple[int, int, Track]] = []
        self.slots = Slots(machine, self)
        self._env = simpy.Environment()
        self._wake = Wake(self._env, self._instant)
        self._over = self._env.event()
        self._ahead = coalesce and observer is None and len(self.main) == len(costs) == 1 and not self._host_waits

    def _add_replica(self, replica: int, costs: Sequence[Cost], ledger: Ledger) -> None:
        layout = self.layout
        host = Host(costs, layout.after, ledger.ends) if needs_host(costs) else None
        if host is not None:
            self._hosts.append(host)
        for number, ops in enumerate(layout.lanes):
            compute = layout.compute and number == len(layout.lanes) - 1
            track = Track(ops, costs, ledger, replica, compute=compute)
            track.issued = None if host is None else host.issued_ns
            (self.main if compute else self.side).append(track)

    @property
    def _host_waits(self) -> bool:
        return any(host.waits for host in self._hosts)

    def run(self) -> int:
        """Run to the end; when the last lane ended (ns). The ledgers say the rest."""
        self._instant(0)
        # Stops with the last lane: a wake-up that is still armed must not prolong the step.
        self._env.run(until=self._over)
        return max(max(ledger.ends) for ledger in self.ledgers)

    # -- one instant ---------------------------------------------------------------------------------

    def _instant(self, now_ns: int) -> None:
        if self.fluid.due_ns <= now_ns:
            self.finish_flows(now_ns)
        if self.slots.due_ns <= now_ns:
            self.slots.pass_boundaries(now_ns)
        self.settle(now_ns)
        self.solve(now_ns)
        if self._ahead and self._open:
            run_ahead(self)
        if self._observer is not None:
            self._observer(now_ns, {**self.fluid.usage(), **self.slots.usage()})
        if not self._open:
            self._over.succeed()
            return
        due_ns = min(self.fluid.due_ns, self.slots.due_ns)
        for track in self.tracks:
            due_ns = min(due_ns, track.due_ns)
        self._wake.at(due_ns)

    def finish_flows(self, now_ns: int) -> None:
        """End the flows that are due."""
        for flow in self.fluid.finish(now_ns):
            flow.owner.left -= 1
            self.stale = True

    def settle(self, now_ns: int) -> None:
        """Take every lane as far as it gets at this instant."""
        again = True
        while again:
            again = False
            for track in self.side:
                again |= self.progress(track, now_ns)
            if self._queued:
                again |= self._serve(now_ns)
            if self.slots.waiting:
                again |= self.slots.place()
            for track in self.main:
                again |= self.progress(track, now_ns)
            for host in self._hosts:
                again |= host.waits and host.go_on()

    def solve(self, now_ns: int) -> None:
        """Bring slowdowns, rates and boundaries up to date, if anything changed that they depend on."""
        if (self._caps and self._work_changed()) or self.stale:
            self.stale = False
            self._contend()
            self.fluid.solve(now_ns)
            self.slots.arm(now_ns)

    def _work_changed(self) -> bool:
        changed = False
        for track in self.main:
            work = track.state in AT_WORK
            if work != self._at_work[track.replica]:
                self._at_work[track.replica] = work
                changed = True
        return changed

    def _contend(self) -> None:
        """Set how much each running operation is slowed by the others."""
        running = self.running
        for track in running:
            if not track.flows:
                continue
            others = tuple([other.cost for other in running if other is not track])
            factor = self.machine.slowdown(track.cost, others) * track.lag
            kinds = self.machine.kinds(
                track.cost, factor, len(track.placed), beside_compute=self._at_work[track.replica]
            )
            for flow, kind in zip(track.flows, kinds, strict=False):
                flow.kind = kind

    # -- one lane ------------------------------------------------------------------------------------

    def progress(self, track: Track, now_ns: int) -> bool:
        """Take a lane as far as it gets at this instant; True where it got anywhere.

        A compute lane stops after each operation: copies that wait are placed before its next one.
        """
        moved = False
        while _STEPS[track.state](self, track, now_ns):
            moved = True
            if track.compute and track.state == State.FREE:
                break
        return moved

    def _free(self, track: Track, now_ns: int) -> bool:
        track.due_ns = NEVER
        if track.head == len(track.ops):
            track.state = State.DONE
            self._open -= 1
            return False
        track.op = op = track.ops[track.head]
        ends = track.ledger.ends
        for wait in self.layout.waits[op]:
            if ends[wait] < 0:
                return False
        track.cost = track.costs[op]
        track.waited_ns = now_ns - track.free_ns
        track.state = State.ISSUE
        return True

    def _issue(self, track: Track, now_ns: int) -> bool:
        if track.issued is not None:
            track.due_ns = track.issued[track.op]
            if track.due_ns > now_ns:
                return False
        track.due_ns = now_ns + track.cost.launches_in_ns(track.waited_ns)
        track.state = State.LAUNCH
        return True

    def _launch(self, track: Track, now_ns: int) -> bool:
        if track.due_ns > now_ns:
            return False
        track.due_ns = NEVER
        if track.cost.skips:
            self._close(track, now_ns)
        elif track.cost.queue:
            self._queued.append((now_ns, track.op, track))
            track.state = State.QUEUE
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
        track.state, track.wanted_ns = State.SEAT, now_ns
        if track.cost.places:
            self.slots.wait(track)

    def _queue(self, track: Track, now_ns: int) -> bool:
        return False

    def _seat(self, track: Track, now_ns: int) -> bool:
        if track.cost.grid is not None and not self.slots.seated(track):
            return False
        track.start_ns = now_ns
        if track.cost.sizes:
            # Held from the start: a copy kernel takes its SMs before its first byte moves.
            self.running.append(track)
            self.stale = True
        track.due_ns = now_ns + track.cost.latency_ns
        track.state = State.LATENCY
        return True

    def _latency(self, track: Track, now_ns: int) -> bool:
        if track.due_ns > now_ns:
            return False
        track.due_ns = NEVER
        track.flow_ns = now_ns
        track.state = State.FLOWS
        track.kernel = 0
        if track.cost.sizes:
            track.flows = [Flow(size, -1, track) for size in track.cost.sizes]
            for flow in track.flows:
                if flow.size:
                    self.fluid.flows.append(flow)
                    track.left += 1
                else:
                    flow.end_ns = now_ns
            self.stale = True
        return True

    def _flows(self, track: Track, now_ns: int) -> bool:
        if track.retakes:
            self.slots.retake(track)
        if track.left:
            return False
        start_ns = track.flow_ns
        op, ledger = track.op, track.ledger
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
        track.flows = []
        self._close(track, now_ns)
        return True

    def _close(self, track: Track, now_ns: int) -> None:
        track.ledger.ends[track.op] = track.free_ns = now_ns
        track.head += 1
        track.state = State.FREE

    def _done(self, track: Track, now_ns: int) -> bool:
        return False


_STEPS = (
    Engine._free, Engine._issue, Engine._launch, Engine._queue, Engine._seat, Engine._latency, Engine._flows,  # noqa: SLF001
    Engine._done,  # noqa: SLF001
)  # fmt: skip
