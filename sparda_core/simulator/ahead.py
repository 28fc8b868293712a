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
        horizon_ns = _horizon_ns(engine, track)
        if track.state == LAUNCH:
            _jump(engine, track, horizon_ns)
        elif track.state == FLOWS:
            _finish(engine, track, horizon_ns)
        due_ns = track.due_ns
        for flow in track.flows:
            if flow.end_ns is None and flow.due_ns < due_ns:
                due_ns = flow.due_ns
        # The end of an operation for which another lane waits is an instant of both.
        if due_ns >= horizon_ns or (watched[track.op] and track.state != LAUNCH):
            return
        # An instant of the compute lane alone.
        engine.finish_flows(due_ns)
        while engine.progress(track, due_ns):
            if track.state == FREE and watched[track.op]:
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
    """Run whole operations, the first of them in its launch gap; begin the one that would reach the horizon."""
    programs = programs_now(engine)
    layout, ledger, issued = engine.layout, track.ledger, track.issued
    ends, ops, costs = ledger.ends, track.ops, track.costs
    while True:
        cost, op = track.cost, track.op
        if cost.number not in programs:
            programs[cost.number] = program(engine, cost)
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
        if any(ends[wait] < 0 for wait in layout.waits[op]) or (issued is not None and issued[op] > end_ns):
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
        engine.open_flows(track, flow_ns)
        engine.solve(flow_ns)


def _finish(engine: Engine, track: Track, horizon_ns: int) -> None:
    """Let the flows of the operation under way end, as far as what runs beside it keeps its rates."""
    fluid = engine.fluid
    own = [flow for flow in track.flows if flow.end_ns is None]
    beside = [flow for flow in fluid.flows if flow.owner is not track]
    kinds = [flow.kind for flow in beside]
    now_ns = NEVER
    while own:
        next_ns = min([flow.due_ns for flow in own])
        rest = [flow for flow in own if flow.due_ns > next_ns]
        rates = fluid.rates.of(tuple(sorted([*kinds, *[flow.kind for flow in rest]])))
        if next_ns >= horizon_ns or any([rates[flow.kind] != flow.rate for flow in beside]):
            break
        now_ns = next_ns
        for flow in own:
            if flow.due_ns <= now_ns:
                flow.moved, flow.end_ns = flow.size, now_ns
        for flow in rest:
            if rates[flow.kind] != flow.rate:
                flow.change_rate(rates[flow.kind], now_ns)
        own = rest
    if now_ns == NEVER:
        return
    track.left = len(own)
    fluid.flows = [flow for flow in fluid.flows if flow.end_ns is None]
    fluid.due_ns = min([flow.due_ns for flow in fluid.flows], default=NEVER)
    if not own:
        engine.progress(track, now_ns)
        # It goes on in an instant of its own.
        track.due_ns = now_ns
