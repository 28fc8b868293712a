"""Running ahead: the compute lane over whole operations at once, where nothing else can be touched by them.

Whatever else could happen has a time that is known: the next launch, the next flow to end, of the other
lanes. Up to that horizon the compute lane is alone with flows that keep their rates, so it need not ask
SimPy for every step, and an operation under the same circumstances takes the same time again (a Program).
Nothing is ever taken back: an operation that would reach the horizon is not run ahead. That the result
is the same to the byte rests on anchored flows: see fluid.py. A test compares both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.simulator.fluid import NEVER, Flow
from sparda_core.simulator.track import State, Track

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


def run_ahead(engine: Engine) -> None:
    """Take the compute lane as far ahead as nothing else can notice."""
    track, slots, watched = engine.main[0], engine.slots, engine.layout.watched
    while not slots.waiting and slots.due_ns == NEVER:
        horizon_ns = _horizon_ns(engine, track)
        if track.state == State.LAUNCH:
            _jump(engine, track, horizon_ns)
        due_ns = track.due_ns
        for flow in track.flows:
            if flow.end_ns is None and flow.due_ns < due_ns:
                due_ns = flow.due_ns
        if due_ns >= horizon_ns or watched[track.op]:
            return
        # An instant of the compute lane alone.
        engine.finish_flows(due_ns)
        while engine.progress(track, due_ns):
            if track.state == State.FREE and watched[track.op]:
                engine.settle(due_ns)
                break
        engine.solve(due_ns)


def _horizon_ns(engine: Engine, own: Track) -> int:
    """The earliest time at which anything but the compute lane does something."""
    horizon_ns = NEVER
    for track in engine.side:
        horizon_ns = min(horizon_ns, track.due_ns)
    for flow in engine.fluid.flows:
        if flow.owner is not own and flow.due_ns < horizon_ns:
            horizon_ns = flow.due_ns
    return horizon_ns


def _jump(engine: Engine, track: Track, horizon_ns: int) -> None:
    """Run whole operations, the first of them in its launch gap, as long as each ends before the horizon."""
    programs = _programs(engine)
    layout, ledger, issued = engine.layout, track.ledger, track.issued
    ends, ops, costs = ledger.ends, track.ops, track.costs
    while True:
        cost, op = track.cost, track.op
        if cost.number not in programs:
            programs[cost.number] = _program(engine, cost)
        program = programs[cost.number]
        end_ns = track.due_ns + program.span_ns if program is not None else NEVER
        if program is None or end_ns >= horizon_ns:
            return
        ledger.starts[op], ends[op], ledger.flow_ends[op] = track.due_ns, end_ns, program.flow_ends
        track.head += 1
        track.free_ns = track.due_ns = end_ns
        if layout.watched[op] or track.head == len(ops):
            break
        op = ops[track.head]
        if any(ends[wait] < 0 for wait in layout.waits[op]) or (issued is not None and issued[op] > end_ns):
            break
        track.op, track.cost, track.waited_ns = op, costs[op], 0
        track.due_ns += track.cost.launch_ns
    track.state = State.FREE


def _programs(engine: Engine) -> dict[int, Program | None]:
    """What is known about operations beside what runs now."""
    pool = engine.machine.pools[0]
    places = (pool.whole, pool.half) if pool is not None else None
    beside = tuple(
        [
            (other.cost.number, len(other.placed), tuple([flow.end_ns is None for flow in other.flows]))
            for other in engine.running
        ]
    )
    return engine.machine.programs.setdefault((places, beside), {})


def _program(engine: Engine, cost: Cost) -> Program | None:
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
