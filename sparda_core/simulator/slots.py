"""Slots: who gets SMs when. Copy kernels are placed between compute kernels, compute kernels on what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.machine import Machine
from sparda_core.simulator.track import FLOWS, LATENCY, Track

if TYPE_CHECKING:
    from sparda_core.simulator.lanes import Lanes

# A share of progress this close below a boundary has reached it: rounding, not work.
_ROUNDING = 1e-9


class Slots:
    """The SMs of every replica during one step.

    waiting  copy kernels with thread blocks that wait for an SM, first come first
    due_ns   the next boundary between two kernels of one operation at which SMs change hands; NEVER where
             no copy waits and the kernel under way would get what it has
    """

    def __init__(self, machine: Machine, lanes: Lanes) -> None:
        self._machine, self._lanes, self._pools = machine, lanes, machine.pools
        for pool in self._pools:
            if pool is not None:
                pool.clear()
        self.waiting: list[Track] = []
        self.due_ns = NEVER
        self._due: dict[int, int] = {}
        # Whether a copy kernel came, went or waits since every compute kernel under way took its SMs.
        self.restless = False

    def usage(self) -> dict[str, float]:
        """SMs held, for the observer; nothing where SMs are not modelled."""
        told: dict[str, float] = {}
        for replica, pool in enumerate(self._pools):
            if pool is not None:
                told[self._machine.named("sms_compute", replica)] = pool.compute_sms
                told[self._machine.named("sms_copy", replica)] = pool.copy_sms
        return told

    def wait(self, track: Track) -> None:
        """A copy kernel wants SMs from now on (ties: plan order)."""
        self.waiting.append(track)
        self.restless = self._lanes.stale = True

    def place(self) -> bool:
        """Place waiting thread blocks on free SMs; True where one was placed."""
        placed = False
        for track in sorted(self.waiting, key=_first) if len(self.waiting) > 1 else self.waiting[:]:
            grid, pool = track.cost.grid, self._pools[track.replica]
            assert grid is not None
            assert pool is not None
            # Inside an operation the next kernel must find an SM: it could not end otherwise.
            inside = [own for own in self._lanes.main if own.retakes and own.replica == track.replica]
            spare = inside[0].cost.grid if inside else None
            got = pool.place(grid.ctas - track.sitting, grid.cluster, spare)
            if got:
                track.late = track.late if track.placed else bool(track.cost.late_caps) and pool.compute_sms > 0
                track.placed += got
                if track.flows or track in self._lanes.running:
                    track.part = self._machine.part(track.cost, track.stand, track.lag)
                self._lanes.stale = placed = self.restless = True
                if track.sitting == grid.ctas:
                    self.waiting.remove(track)
        return placed

    def seated(self, track: Track) -> bool:
        """Whether an operation with a grid can begin: a copy kernel with its first block placed, or SMs taken."""
        if track.cost.places:
            return bool(track.placed)
        return self._take(track)

    def _take(self, track: Track) -> bool:
        grid, pool = track.cost.grid, self._pools[track.replica]
        assert grid is not None
        assert pool is not None
        seat = pool.take(grid)
        if not seat.waves:
            return False
        track.lag = self._machine.wave_factor(track.cost, seat)
        return True

    def leave(self, track: Track) -> None:
        """An operation ended: its SMs are free."""
        pool = self._pools[track.replica]
        assert pool is not None
        if track.cost.places:
            if track in self.waiting:
                # Blocks that never found an SM find nothing left to copy.
                self.waiting.remove(track)
            pool.release(track.placed)
            track.placed = ()
            self.restless = True
        else:
            pool.give()
            track.lag = 1.0

    def watches(self, track: Track) -> bool:
        """Whether SMs may change hands between two kernels of the operation under way."""
        if not self.restless or track.cost.kernels == 1 or track.cost.grid is None:
            return False
        pool = self._pools[track.replica]
        assert pool is not None
        return bool(self.waiting) or self._machine.wave_factor(track.cost, pool.seat(track.cost.grid)) != track.lag

    def arm(self, now_ns: int) -> None:
        """Find the next boundary at which SMs change hands."""
        self.due_ns = NEVER
        self.restless = bool(self.waiting)
        self._due.clear()
        for track in self._lanes.main:
            if track.state not in (LATENCY, FLOWS) or track.cost.kernels == 1 or track.cost.grid is None:
                continue
            pool = self._pools[track.replica]
            assert pool is not None
            awaited = any(copy.replica == track.replica for copy in self.waiting)
            if awaited or self._machine.wave_factor(track.cost, pool.seat(track.cost.grid)) != track.lag:
                self.restless = True
                self._due[track.replica] = due_ns = _boundary_ns(track, now_ns)
                self.due_ns = min(self.due_ns, due_ns)

    def pass_boundaries(self, now_ns: int) -> None:
        """Kernels end whose boundary is due, if their operation goes on; the next ones take SMs in this instant."""
        self.due_ns = NEVER
        for track in self._lanes.main:
            if self._due.get(track.replica, NEVER) <= now_ns:
                self._due[track.replica] = NEVER
                self._lanes.stale = True
                if track.state == FLOWS and track.live:
                    pool = self._pools[track.replica]
                    assert pool is not None
                    track.kernel += 1
                    track.retakes = True
                    pool.give()

    def retake(self, track: Track) -> None:
        """The next kernel of an operation takes its SMs."""
        track.retakes = False
        assert self._take(track), "placing left no SM to an operation under way"
        track.part = self._machine.part(track.cost, 0, track.lag)


def _first(track: Track) -> tuple[int, int]:
    return track.wanted_ns, track.op


def _boundary_ns(track: Track, now_ns: int) -> int:
    """When the slowest flow of an operation reaches its next boundary; NEVER where only its end is left."""
    kernels = track.cost.kernels
    if track.state != FLOWS:
        return NEVER
    slowest = min(flow.moved_at(now_ns) / flow.size if flow.end_ns is None else 1.0 for flow in track.flows)
    track.kernel = max(track.kernel, int(slowest * kernels + _ROUNDING))
    mark = track.kernel + 1
    if mark >= kernels:
        return NEVER
    return max(now_ns, *(flow.reach_ns(flow.size * mark / kernels) for flow in track.live))
