"""Mutants of SM slots, queues, the host, running ahead, and several machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from sparda_core.simulator import programs, sms
from sparda_core.simulator.lanes import Lanes
from sparda_core.simulator.machine import Cost, Situation
from sparda_core.simulator.machine import Machine as EngineMachine
from sparda_core.simulator.profile import Grid, Price
from sparda_core.simulator.programs import Program
from sparda_core.simulator.slots import Slots
from sparda_core.simulator.sms import Seat, SmPool
from tests.simulator.laws.law import mutant

Rates = tuple[float, ...]
Capacity = Mapping[str, float]
FLUID = "sparda_core.simulator.fluid"


@mutant("a-copy-cta-holds-no-sm", "copy CTAs are placed without taking an SM from anybody")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sms, "_shifted", lambda free, tpcs, by: free)


@mutant("compute-takes-every-sm", "a compute kernel holds all SMs, those of copies included")
def _(patch: pytest.MonkeyPatch) -> None:
    def greedy(self: SmPool, grid: Grid) -> tuple[Any, Seat]:
        free, seat = self._held.free, self.seat(grid)
        return self._keep(free, (sms.PAIR,) * len(free), compute=seat.waves > 0), seat

    patch.setattr(SmPool, "_take", greedy)


@mutant("three-on-a-tpc", "a TPC that is full takes another copy CTA")
def _(patch: pytest.MonkeyPatch) -> None:
    find = sms._find
    patch.setattr(sms, "_find", lambda left, cluster: find(left, cluster) or (0,) * cluster)


@mutant("lone-copies-share-a-tpc", "lone copy CTAs fill half a TPC before they take another")
def _(patch: pytest.MonkeyPatch) -> None:
    find = sms._find

    def packed(left: list[int], cluster: int) -> tuple[int, ...]:
        half = [tpc for tpc, free in enumerate(left) if free == 1]
        return tuple(half[:1]) if cluster == 1 and half else find(left, cluster)

    patch.setattr(sms, "_find", packed)


@mutant("copies-wait-for-an-idle-lane", "a copy that found no SM is placed when the compute lane has nothing to do")
def _(patch: pytest.MonkeyPatch) -> None:
    place = Slots.place

    def late(self: Slots) -> bool:
        lanes = self._lanes
        for track in lanes.main:
            waits = lanes.layout.waits[track.ops[track.head]] if track.head < len(track.ops) else (None,)
            if not any(wait is None or track.ledger.ends[wait] < 0 for wait in waits):
                return False
        return place(self)

    patch.setattr(Slots, "place", late)


@mutant("copies-are-preempted", "a compute kernel that starts takes an SM back from a copy")
def _(patch: pytest.MonkeyPatch) -> None:
    take = SmPool._take

    def wrong(self: SmPool, grid: Grid) -> tuple[Any, Seat]:
        free = list(self._held.free)
        held = [tpc for tpc, left in enumerate(free) if left < sms.PAIR]
        for tpc in held[:1]:
            free[tpc] += 1
        self._held = self._keep(tuple(free), self._held.taken, compute=False)
        return take(self, grid)

    patch.setattr(SmPool, "_take", wrong)


@mutant("waves-forgotten", "a kernel on fewer SMs takes no longer")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineMachine, "wave_factor", lambda self, cost, seat: 1.0)


def _charged(patch: pytest.MonkeyPatch, change: Callable[[Price], Price]) -> None:
    """Make other prices ready for the engine."""
    real = EngineMachine._cost
    patch.setattr(EngineMachine, "_cost", lambda self, price, replica: real(self, change(price), replica))


@mutant("copies-like-company-by-hand", "the rates of a copy alone and beside compute are mixed up")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, copy_caps=tuple((b, a) for a, b in price.copy_caps)))


@mutant("caps-of-one-block", "a copy kernel moves what one of its thread blocks moves")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, copy_caps=price.copy_caps[:1] * len(price.copy_caps)))


@mutant("late-blocks-add-nothing", "a block of a copy kernel that finds its SM late moves nothing")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Slots.place

    def wrong(self: Slots) -> bool:
        under_way = {track: track.part for track in self._lanes.running}
        placed = real(self)
        for track, part in under_way.items():
            track.part = part
        return placed

    patch.setattr(Slots, "place", wrong)


@mutant("queue-forgotten", "a copy engine serves all at once")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, queue=""))


@mutant("queue-in-reverse", "a copy engine serves first whoever came last")
def _(patch: pytest.MonkeyPatch) -> None:
    serve = Lanes._serve

    def reverse(self: Lanes, now_ns: int) -> bool:
        self._queued = [(-ready, -op, track) for ready, op, track in self._queued]
        served = serve(self, now_ns)
        self._queued = [(-ready, -op, track) for ready, op, track in self._queued]
        return served

    patch.setattr(Lanes, "_serve", reverse)


@mutant("host-issues-at-once", "the host issues every operation at the start of the step")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, issue_s=0.0))


@mutant("host-never-waits", "the host issues a copy before it knows what to copy")
def _(patch: pytest.MonkeyPatch) -> None:
    _charged(patch, lambda price: attrs.evolve(price, host_waits=False))


WorkOut = Callable[[EngineMachine, Situation, int, Cost], Program | None]


def _worked_out(patch: pytest.MonkeyPatch, wrong: Callable[[WorkOut], WorkOut]) -> None:
    """Work out programs, by which the compute lane is run ahead, in another way."""
    patch.setattr(programs, "work_out", wrong(programs.work_out))


@mutant("ahead-by-a-tick", "an operation that is run ahead ends a nanosecond early")
def _(patch: pytest.MonkeyPatch) -> None:
    def early(real: WorkOut) -> WorkOut:
        def wrong(machine: EngineMachine, beside: Situation, part: int, cost: Cost) -> Program | None:
            made = real(machine, beside, part, cost)
            return made and attrs.evolve(made, span_ns=max(0, made.span_ns - 1))

        return wrong

    _worked_out(patch, early)


@mutant("ahead-without-looking-beside", "an operation is run ahead as if no copy ran beside it")
def _(patch: pytest.MonkeyPatch) -> None:
    def blind(real: WorkOut) -> WorkOut:
        # What is not negative in a situation runs.
        return lambda machine, beside, part, cost: real(machine, tuple(n for n in beside if n < 0), part, cost)

    _worked_out(patch, blind)


@mutant("host-memory-of-ones-own", "every machine has all of the host's memory to itself")
def _(patch: pytest.MonkeyPatch) -> None:
    real = EngineMachine.__init__
    patch.setattr(EngineMachine, "__init__", lambda self, profile, replicas=1, split=1: real(self, profile, replicas))
