"""Engine: one step in virtual time. Lanes are tracks of small states; an instant is settled at once.

SimPy's event loop calls at every instant at which something is due: a flow's last unit, the end of a
launch gap or of a latency, a boundary between two kernels for which somebody waits. In an instant

1. flows that are due end, and operations with their last one: their SMs and their queue are free;
2. lanes other than compute lanes get as far as they can; queues serve whoever was ready first (ties: plan
   order); copy kernels' thread blocks that wait are placed;
3. compute lanes get as far as they can, one operation at a time: a compute kernel takes its SMs after the
   copies that waited for them;
4. if an operation ended on the way, again from 2; then slowdowns and rates are solved, once, and the next
   call is armed.

So simultaneous events have an order of their own, whatever order they were armed in.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

from sparda_core.simulator.ahead import run_ahead
from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.host import Host
from sparda_core.simulator.lanes import Lanes
from sparda_core.simulator.layout import Layout
from sparda_core.simulator.machine import Bill, Machine, Situation
from sparda_core.simulator.programs import spell_out
from sparda_core.simulator.track import AT_WORK, FLOWS, FREE, ISSUE, PROGRAM, SEAT, Ledger, Track
from sparda_core.simulator.windows import Moment, is_quiet, key_of, put

Observer = Callable[[int, dict[str, float]], None]
#: States that no time ends: they end with something else.
_ASKS = frozenset({FREE, ISSUE, SEAT})


class Engine(Lanes):
    """One step of a plan on a machine, from time 0.

    observer  called at every instant with (now in ns, units per second taken from each resource); where
              SMs are modelled, `sms_compute` and `sms_copy` are how many are held
    coalesce  run the compute lane over operations that nothing else can touch without asking SimPy's loop
              for each; changes nothing but speed
    remember  where that is done, repeat by memory what was met before (windows.py); changes nothing but speed
    """

    def __init__(
        self, layout: Layout, bill: Bill, machine: Machine, observer: Observer | None = None, *, coalesce: bool = True,
        remember: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(layout, machine)
        self._observer = observer
        self._hosts: list[Host] = []
        self.ledgers = [self._add_replica(replica, bill) for replica in range(machine.replicas)]
        self.tracks = [*self.side, *self.main]
        self.lanes_open = len(self.tracks)
        self.at_work = 0 if bill.caps else None
        self._solved = machine.solved
        self._env = simpy.Environment()
        waits = any(host.waits for host in self._hosts)
        self.plans = coalesce and observer is None and machine.replicas == len(self.main) == 1 and not waits
        # What the host issued counts from the step's start: then equal stands go on differently.
        self._windows = machine.windows(layout) if remember and self.plans and not self._hosts else None
        self._met: Moment | None = None
        self._bill = bill

    def _add_replica(self, replica: int, bill: Bill) -> Ledger:
        layout, costs = self.layout, bill.costs[replica]
        ledger = Ledger(len(costs))
        host = Host(costs, layout.order, layout.listed, ledger.ends) if bill.host else None
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
        if self.recall(0):
            self._arm()
        else:
            self._instant(0)
        self._env.run()
        assert not self.lanes_open, f"{self.lanes_open} lanes wait for each other"
        return max(max(ledger.ends) for ledger in self.ledgers)

    def _instant(self, now_ns: int) -> None:
        for track in self.tracks:
            if track.due_ns <= now_ns and track.state >= FLOWS:
                self.pass_flows(track, now_ns)
        slots = self.slots
        if slots.due_ns <= now_ns:
            slots.pass_boundaries(now_ns)
        self.settle(now_ns)
        self.solve(now_ns)
        if self.plans and self.lanes_open:
            run_ahead(self)
        if self._observer is not None:
            self._observer(now_ns, {**self.usage(), **slots.usage()})
        if self.lanes_open:
            self._arm()

    def recall(self, base_ns: int | None = None) -> bool:
        """Go on as far as was met before; False where nothing was.

        base_ns  the next instant; None: the earliest that is due (NEVER at the end, from where nothing goes on)
        """
        windows, met = self._windows, self._met
        if windows is None or not is_quiet(self):
            return False
        base_ns = self._next_ns() if base_ns is None else base_ns
        key = key_of(self, base_ns)
        heads = tuple([track.head for track in self.tracks])
        here = windows.stand(key), heads, base_ns
        if met is not None and heads != met[1]:
            windows.learn(met, here, self._bill.keys, self.ledgers[0])
        self._met = there = windows.replay(here, self._bill.keys, self.ledgers[0])
        if there == here:
            return False
        put(self, there)
        return True

    def _next_ns(self) -> int:
        """The earliest time at which anything is due."""
        due_ns = self.slots.due_ns
        for track in self.tracks:
            if track.due_ns < due_ns:  # noqa: PLR1730 - a call of min costs more than the rest of the loop
                due_ns = track.due_ns
        return due_ns

    def _arm(self) -> None:
        """One wake-up, at the earliest time known: nothing can come before it, and it arms the next one."""
        due_ns = self._next_ns()
        if due_ns < NEVER:
            wake = self._env.timeout(due_ns - self._env.now)
            assert wake.callbacks is not None
            wake.callbacks.append(self._wake)

    def _wake(self, _: simpy.Event) -> None:
        self._instant(int(self._env.now))

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

    def solve(self, now_ns: int) -> None:
        """Bring slowdowns, rates and boundaries up to date, where anything changed that they depend on."""
        if self.at_work is not None:
            self._look_who_works()
        if not self.stale:
            return
        self.stale = False
        situation = self.look()
        if self.plans and self.main[0].state == PROGRAM and self._plan_fails(situation, now_ns):
            situation = self.look()
        if situation:
            # By memory, or worked out.
            solution = self._solved.get(situation) or self.machine.solve(situation)
            for track, rates in zip(self.running, solution, strict=True):
                if track.live:
                    track.set_rates(rates, now_ns)
        if self.slots.restless:
            self.slots.arm(now_ns)

    def _look_who_works(self) -> None:
        work = 0
        for track in self.main:
            if track.state in AT_WORK:
                work |= 1 << track.replica
        if work != self.at_work:
            self.at_work = work
            self.stale = True

    def _plan_fails(self, situation: Situation, now_ns: int) -> bool:
        """Carry on by another program where what runs beside it changed; spell out where none will do: then True."""
        own = self.main[0]
        program = own.program
        assert program is not None
        if not own.cost.sizes:
            return False
        if not self.slots.watches(own):
            if situation == own.beside:
                return False
            after = self.machine.carried_on(situation, own.part, program, now_ns - own.start_ns)
            if after is not None:
                own.program, own.beside, own.due_ns = after, situation, own.start_ns + after.span_ns
                return False
        spell_out(own, program, now_ns)
        self.running.append(own)
        return True

    def usage(self) -> dict[str, float]:
        """Units per second now taken from each resource."""
        taken = dict.fromkeys(self.machine.rates.capacity, 0.0)
        for track in self.running:
            for flow in track.live:
                for name, amount in track.cost.demands[flow.kind].uses:
                    taken[name] += flow.rate * amount
        return taken
