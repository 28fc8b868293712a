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
from sparda_core.simulator.track import FLOWS, FREE, LAUNCH, Track

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine


def run_ahead(engine: Engine) -> None:
    """Take the compute lane as far ahead as nothing else can notice."""
    track, slots, watched = engine.main[0], engine.slots, engine.layout.watched
    while not slots.waiting and slots.due_ns == NEVER:
        engine.recall()
        horizon_ns = _horizon_ns(engine)
        if track.state == LAUNCH and _jump(engine, track, horizon_ns):
            continue
        now_ns = track.due_ns
        if now_ns >= horizon_ns:
            return
        # An instant of the compute lane alone, unless it ends an operation for which another lane waits.
        if track.state >= FLOWS:
            engine.pass_flows(track, now_ns)
        if track.state == FREE and watched[track.op]:
            engine.settle(now_ns)
        while engine.progress(track, now_ns):
            if track.state == FREE and watched[track.op]:
                engine.settle(now_ns)
                break
        engine.solve(now_ns)


def _horizon_ns(engine: Engine) -> int:
    """The earliest time at which anything but the compute lane does something."""
    horizon_ns = NEVER
    for track in engine.side:
        if track.due_ns < horizon_ns:  # noqa: PLR1730 - a call of min costs more than the rest of the loop
            horizon_ns = track.due_ns
    return horizon_ns


def _jump(engine: Engine, track: Track, horizon_ns: int) -> bool:
    """Run whole operations, the first of them in its launch gap; begin the one that would reach the horizon.

    True where the next one is in its launch gap and another lane waits for it: a moment to look what is known. What
    others wait for, such as a list of misses, may differ from layer to layer, while all that comes before does not.
    """
    machine, ledger, issued = engine.machine, track.ledger, track.issued
    watched, waits_of, last = engine.layout.watched, engine.layout.waits, len(track.ops)
    beside = engine.situation
    programs = machine.programs.setdefault(beside, {})
    pool = machine.pools[0]
    parts = machine.starts.setdefault(None if pool is None else pool.places, {})
    starts, ends, flow_ends, ops, costs = ledger.starts, ledger.ends, ledger.flow_ends, track.ops, track.costs
    cost, op, start_ns = track.cost, track.op, track.due_ns
    while True:
        number = cost.number
        if number not in parts:
            parts[number] = -1 if cost.places or cost.queue or cost.skips else machine.start(cost)
        part = parts[number]
        if part < 0:
            return False
        if part not in programs:
            machine.program(beside, part)
        program = programs[part]
        end_ns = start_ns + program.span_ns if program is not None else NEVER
        if program is None or end_ns >= horizon_ns:
            if program is not None and start_ns < horizon_ns:
                _begin(engine, track)
            return False
        starts[op], ends[op], flow_ends[op] = start_ns, end_ns, program.flow_ends
        track.head += 1
        track.free_ns = track.due_ns = end_ns
        if watched[op] or track.head == last:
            break
        op = ops[track.head]
        waits = waits_of[op]
        if (waits and min([ends[wait] for wait in waits]) < 0) or (issued is not None and issued[op] > end_ns):
            break
        track.op = op
        track.cost = cost = costs[op]
        track.waited_ns = 0
        track.due_ns = start_ns = end_ns + cost.launch_ns
        if watched[op]:
            return True
    track.state = FREE
    return False


def _begin(engine: Engine, track: Track) -> None:
    """Begin an operation that has a program: what runs beside it keeps its rates."""
    if track.cost.grid is not None:
        taken = engine.slots.seated(track)
        assert taken, "an operation with a program found no SM"
    planned = engine.plan(track, track.due_ns)
    assert planned, "an operation lost its program"
