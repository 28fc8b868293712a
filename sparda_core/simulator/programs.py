"""Programs: what one operation of the compute lane does beside other lanes that it does not disturb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.simulator.fluid import Flow
from sparda_core.simulator.track import Track

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine
    from sparda_core.simulator.machine import Cost, Machine


@attrs.frozen
class Program:
    """One operation under given circumstances: its span, and when each flow ends after the first one's start (ns)."""

    span_ns: int
    flow_ends: tuple[int, ...]


#: By circumstances, then by cost; None where the operation changes the rates of what runs beside it.
Circumstances = tuple[object, ...]
Programs = dict[Circumstances, dict[int, Program | None]]


def programs_now(engine: Engine) -> dict[int, Program | None]:
    """What is known about operations beside what runs now."""
    pool = engine.machine.pools[0]
    places = pool.places if pool is not None else None
    beside = tuple(
        [
            (other.cost.number, len(other.placed), tuple([flow.end_ns is None for flow in other.flows]))
            for other in engine.running
        ]
    )
    circumstances = places, beside
    known = engine.machine.programs.get(circumstances)
    if known is None:
        known = engine.machine.programs[circumstances] = {}
    return known


def program(engine: Engine, cost: Cost) -> Program | None:
    """Work out an operation that starts beside what runs now; None where it must be run step by step."""
    machine, running = engine.machine, engine.running
    if cost.places or cost.queue or cost.skips:
        return None
    lag = 1.0
    if cost.grid is not None:
        pool = machine.pools[0]
        assert pool is not None
        seat = pool.seat(cost.grid)
        if not seat.waves:
            return None
        lag = machine.wave_factor(cost, seat)
    if not cost.sizes:
        return Program(cost.latency_ns, ())
    before = [flow for other in running for flow in other.flows if flow.end_ns is None]
    beside = [kind for other in running for kind in _kinds_beside(machine, other, running, cost)]
    steady = {kind: flow.rate for kind, flow in zip(beside, before, strict=True)}
    factor = machine.slowdown(cost, tuple(other.cost for other in running)) * lag
    kinds = machine.kinds(cost, factor, 0, beside_compute=True)
    ends = _own_ends(machine, [Flow(size, kind) for size, kind in zip(cost.sizes, kinds, strict=True)], beside, steady)
    return None if ends is None else Program(cost.latency_ns + max(ends), ends)


def _own_ends(
    machine: Machine, own: list[Flow], beside: list[int], steady: dict[int, float]
) -> tuple[int, ...] | None:  # fmt: skip
    """When flows that start at 0 end beside others that must keep their rates; None where they would not."""
    now_ns, active = 0, [flow for flow in own if flow.size]
    while True:
        rates = machine.rates.of(tuple(sorted([*beside, *(flow.kind for flow in active)])))
        if any(rates[kind] != rate for kind, rate in steady.items()):
            return None
        if not active:
            return tuple(flow.end_ns or 0 for flow in own)
        for flow in active:
            if rates[flow.kind] != flow.rate:
                flow.change_rate(rates[flow.kind], now_ns)
        now_ns = min(flow.due_ns for flow in active)
        for flow in active:
            if flow.due_ns <= now_ns:
                flow.end_ns = now_ns
        active = [flow for flow in active if flow.end_ns is None]


def _kinds_beside(machine: Machine, other: Track, running: list[Track], cost: Cost) -> list[int]:
    """Kinds of the flows of `other` once the operation of `cost` has started."""
    others = (*(track.cost for track in running if track is not other), cost)
    factor = machine.slowdown(other.cost, others) * other.lag
    kinds = machine.kinds(other.cost, factor, len(other.placed), beside_compute=True)
    return [kind for flow, kind in zip(other.flows, kinds, strict=False) if flow.end_ns is None]
