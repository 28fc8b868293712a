"""Programs: what one operation of the compute lane does beside other lanes that it does not disturb.

An operation whose start and end change nobody else's rates need not be followed flow by flow: when its
flows end is known when it begins. Where what runs beside it changes in mid-way, it carries on by another
program; where it would disturb that, its flows are spelled out as they stand then, to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparda_core.simulator.fluid import Flow
from sparda_core.simulator.track import FLOWS, LATENCY, Track

if TYPE_CHECKING:
    from sparda_core.simulator.machine import Cost, Machine, Situation


#: (when, which flows are live as bits, their rates).
Turn = tuple[int, int, tuple[float, ...]]


@attrs.frozen(eq=False)
class Program:
    """One operation under given circumstances; times in ns. Told apart by identity, which is quick to look up.

    span_ns    from its start to its end
    flow_ends  when each flow ends, after the start of all flows
    turns      what holds from each change of rates on, counted from the start of all flows
    """

    span_ns: int
    flow_ends: tuple[int, ...]
    turns: tuple[Turn, ...]

    @property
    def content(self) -> tuple[object, ...]:
        """Equal for programs that do the same."""
        return self.span_ns, self.flow_ends, self.turns


#: By part: None where the operation changes the rates of what runs beside it.
Programs = dict[int, Program | None]


def work_out(machine: Machine, beside: Situation, part: int, cost: Cost) -> Program | None:
    """Program of an operation beside what else runs; None where it must be run flow by flow."""
    if not cost.sizes:
        return Program(cost.latency_ns, (), ())
    return _to_the_end(machine, beside, part, cost, [Flow(size, bit) for bit, size in enumerate(cost.sizes)], 0, [])


def carry_on(
    machine: Machine, beside: Situation, part: int, cost: Cost, program: Program, since_ns: int
) -> Program | None:  # fmt: skip
    """Program of an operation that ran by another one for `since_ns`, when what runs beside it changed."""
    now_ns = since_ns - cost.latency_ns
    if now_ns < 0:
        return work_out(machine, beside, part, cost)
    flows = [Flow(size, bit) for bit, size in enumerate(cost.sizes)]
    turns = [turn for turn in program.turns if turn[0] < now_ns]
    for turn_ns, mask, rates in turns:
        live = [flow for flow in flows if mask >> flow.kind & 1]
        _move(live, rates, turn_ns)
    for flow in flows:
        # Not by flow_ends: what ends in the very instant in which it begins has not ended before this instant.
        if flow.due_ns <= now_ns:
            flow.end_ns = flow.due_ns
    return _to_the_end(machine, beside, part, cost, flows, now_ns, turns)


def _to_the_end(
    machine: Machine, beside: Situation, part: int, cost: Cost, flows: list[Flow], now_ns: int, turns: list[Turn]
) -> Program | None:  # fmt: skip
    """The program from here on; flows that have ended say so, the others stand as they were anchored."""
    running = tuple(number for number in beside if number >= 0)
    rest = beside[len(running) :]
    before = machine.solve(beside)
    live = [flow for flow in flows if flow.size and flow.end_ns is None]
    while True:
        mask = sum(1 << flow.kind for flow in live)
        *others, rates = machine.solve((*running, machine.number(part, mask), *rest))
        if tuple(others) != before:
            return None
        if not live:
            ends = tuple(flow.end_ns or 0 for flow in flows)
            return Program(cost.latency_ns + max(ends), ends, tuple(turns))
        turns.append((now_ns, mask, rates))
        _move(live, rates, now_ns)
        now_ns = min(flow.due_ns for flow in live)
        for flow in live:
            if flow.due_ns <= now_ns:
                flow.end_ns = now_ns
        live = [flow for flow in live if flow.end_ns is None]


def _move(live: list[Flow], rates: tuple[float, ...], now_ns: int) -> None:
    for flow, rate in zip(live, rates, strict=True):
        if rate != flow.rate:
            flow.change_rate(rate, now_ns)


def spell_out(track: Track, program: Program, now_ns: int) -> None:
    """Put the operation that runs by a program where it stands at `now_ns`, before that instant's rates are solved."""
    flow_ns = track.start_ns + track.cost.latency_ns
    if now_ns < flow_ns:
        track.state, track.due_ns = LATENCY, flow_ns
        return
    track.open_flows(flow_ns)
    for turn_ns, mask, rates in program.turns:
        at_ns = flow_ns + turn_ns
        # At this very instant the rates are those of what changed in it.
        if at_ns >= now_ns:
            break
        track.end_flows(at_ns)
        assert track.mask == mask
        track.set_rates(rates, at_ns)
    track.end_flows(now_ns)
    assert track.state == FLOWS
    assert track.live
