"""Programs: what one operation of the compute lane does beside other lanes that it does not disturb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.simulator.fluid import Flow
from sparda_core.simulator.machine import FLOW_BITS, Cost, Machine, Situation

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine


@attrs.frozen
class Program:
    """One operation under given circumstances: its span, and when each flow ends after the first one's start (ns)."""

    span_ns: int
    flow_ends: tuple[int, ...]


#: By circumstances, then by cost; None where the operation changes the rates of what runs beside it.
Circumstances = tuple[object, ...]
Programs = dict[Circumstances, dict[int, Program | None]]


def programs_now(engine: Engine, situation: Situation) -> dict[int, Program | None]:
    """What is known about operations beside what runs now."""
    pool = engine.machine.pools[0]
    circumstances = situation, None if pool is None else pool.places
    known = engine.machine.programs.get(circumstances)
    if known is None:
        known = engine.machine.programs[circumstances] = {}
    return known


def program(machine: Machine, beside: Situation, cost: Cost) -> Program | None:
    """Work out an operation that starts beside what runs now; None where it must be run step by step."""
    if cost.places or cost.queue or cost.skips:
        return None
    part = cost.part
    if cost.grid is not None:
        pool = machine.pools[0]
        assert pool is not None
        seat = pool.seat(cost.grid)
        if not seat.waves:
            return None
        part = machine.part(cost, lag=machine.wave_factor(cost, seat))
    if not cost.sizes:
        return Program(cost.latency_ns, ())
    ends = _flow_ends(machine, beside, cost, part)
    return None if ends is None else Program(cost.latency_ns + max(ends), ends)


def _flow_ends(machine: Machine, beside: Situation, cost: Cost, part: int) -> tuple[int, ...] | None:
    """When flows that start at 0 end beside others that must keep their rates; None where they would not."""
    running = [number for number in beside if number >= 0]
    rest = beside[len(running):]  # fmt: skip
    before = machine.solve(beside)
    now_ns, mask = 0, cost.mask
    own = [Flow(size, bit) for bit, size in enumerate(cost.sizes)]
    live = [flow for flow in own if flow.size]
    while True:
        *others, rates = machine.solve((*running, part << FLOW_BITS | mask, *rest))
        if tuple(others) != before:
            return None
        if not live:
            return tuple(flow.end_ns or 0 for flow in own)
        for flow, rate in zip(live, rates, strict=True):
            if rate != flow.rate:
                flow.change_rate(rate, now_ns)
        now_ns = min(flow.due_ns for flow in live)
        for flow in live:
            if flow.due_ns <= now_ns:
                flow.end_ns = now_ns
                mask &= ~(1 << flow.kind)
        live = [flow for flow in live if flow.end_ns is None]
