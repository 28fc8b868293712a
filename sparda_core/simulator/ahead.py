"""Running ahead: the compute lane over whole operations at once, where nothing else can be touched by them.

Whatever else could happen has a time that is known: the next launch, the next flow to end, of the other
lanes. Up to that horizon the compute lane is alone with flows that keep their rates, so it need not ask
SimPy for every event, and an operation under the same circumstances takes the same time again. Nothing is
ever taken back: what would reach the horizon is left to SimPy. That the result is the same to the byte
rests on anchored flows (fluid.py); a test compares both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.programs import program, programs_now
from sparda_core.simulator.track import FLOWS, FREE, LAUNCH, Track

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine


def run_ahead(engine: Engine) -> None:
    """Take the compute lane as far ahead as nothing else can notice."""
    track, slots, watched = engine.main[0], engine.slots, engine.layout.watched
    while not slots.waiting and slots.due_ns == NEVER:
        horizon_ns = NEVER
        for other in engine.side:
            if other.due_ns < horizon_ns:  # noqa: PLR1730 - a call of min costs more than the rest
                horizon_ns = other.due_ns
        if track.state == LAUNCH:
            _jump(engine, track, horizon_ns)
        now_ns = track.due_ns
        if now_ns >= horizon_ns:
            return
        # An instant of the compute lane alone, unless it ends an operation for which another lane waits.
        if track.state == FLOWS:
            track.end_flows(now_ns)
            engine.stale = True
            if not track.live:
                engine.end(track, now_ns)
        if track.state == FREE and watched[track.op]:
            engine.settle(now_ns)
        while engine.progress(track, now_ns):
            if track.state == FREE and watched[track.op]:
                engine.settle(now_ns)
                break
        engine.solve(now_ns)


def _jump(engine: Engine, track: Track, horizon_ns: int) -> None:
    """Run whole operations, the first of them in its launch gap; begin the one that would reach the horizon."""
    beside = engine.situation()
    programs = programs_now(engine, beside)
    layout, ledger, issued = engine.layout, track.ledger, track.issued
    ends, ops, costs = ledger.ends, track.ops, track.costs
    while True:
        cost, op = track.cost, track.op
        if cost.number not in programs:
            programs[cost.number] = program(engine.machine, beside, cost)
        known = programs[cost.number]
        if known is None:
            return
        end_ns = track.due_ns + known.span_ns
        if end_ns >= horizon_ns:
            if track.due_ns < horizon_ns:
                _begin(engine, track, horizon_ns)
            return
        ledger.starts[op], ends[op], ledger.flow_ends[op] = track.due_ns, end_ns, known.flow_ends
        track.head += 1
        track.free_ns = track.due_ns = end_ns
        if layout.watched[op] or track.head == len(ops):
            break
        op = ops[track.head]
        waits = layout.waits[op]
        if (waits and min([ends[wait] for wait in waits]) < 0) or (issued is not None and issued[op] > end_ns):
            break
        track.op, track.cost, track.waited_ns = op, costs[op], 0
        track.due_ns += track.cost.launch_ns
    track.state = FREE


def _begin(engine: Engine, track: Track, horizon_ns: int) -> None:
    """Begin an operation that has a program: what runs beside it keeps its rates, so they are solved later."""
    if track.cost.grid is not None:
        taken = engine.slots.seated(track)
        assert taken, "an operation with a program found no SM"
    engine.begin(track, track.due_ns)
    if track.due_ns < horizon_ns:
        flow_ns = track.due_ns
        track.open_flows(flow_ns)
        engine.solve(flow_ns)
