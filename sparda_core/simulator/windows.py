"""Windows: what all lanes do from one quiet instant to the next, by memory.

An instant is *quiet* where no other lane has an operation under way, and the compute lane is between two
operations or runs one by its program. Such a state is small (`Stand`): what each lane waits for, and how
long until its launch is over. What follows from it depends on nothing else but the operations that come
next, what they cost, and which of them wait for which. So where an equal stand meets equal operations,
what happened the first time happens again, later by a whole number of nanoseconds; layers are much alike,
and steps too. What was never met is simulated, and remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import attrs

from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.layout import Extents, Heads, Layout
from sparda_core.simulator.track import DONE, FREE, LAUNCH, PROGRAM, Ledger

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine
    from sparda_core.simulator.machine import Situation
    from sparda_core.simulator.programs import Program

#: A window of more operations than this is not remembered: layers come again, whole steps need not.
MOST_OPERATIONS = 48
#: Where every window differs the memory must end somewhere.
MOST_WINDOWS = 10_000
_QUIET = frozenset({FREE, LAUNCH, DONE})
_QUIET_COMPUTE = frozenset({FREE, LAUNCH, PROGRAM, DONE})


@attrs.frozen(kw_only=True)
class UnderWay:
    """The operation that the compute lane runs by its program; started_ns counts from the stand's time."""

    program: Program
    beside: Situation
    part: int
    lag: float
    started_ns: int


@attrs.frozen(kw_only=True, cache_hash=True)
class Stand:
    """A quiet state, whenever and wherever in a plan it is met; times count from the next instant on.

    states    of each lane
    dues_ns   of each lane in its launch gap or in a program, when that is over; of a lane that is free and whose
              next launch depends on how long it waited, when it became free; else 0
    rest      what else the engine knows: who is at work, whether that is out of date, whether SMs are restless
    places    who holds which SMs
    under_way what runs by a program
    onward    by how far the heads of the lanes go, then by operations: the windows known from here
    """

    states: tuple[int, ...]
    dues_ns: tuple[int, ...]
    rest: tuple[int | None, bool, bool]
    places: Hashable
    under_way: UnderWay | None
    onward: dict[Extents, dict[Hashable, Window]] = attrs.field(factory=dict, eq=False, repr=False)


@attrs.frozen(kw_only=True, eq=False)
class Window:
    """What happened from one stand to the next; times count from the first one's.

    spans    of each operation that ended: its start (None: no span), its end, the ends of its flows
    long_ns  from the one to the other
    then     the other
    """

    spans: tuple[tuple[int | None, int, tuple[int, ...]], ...]
    long_ns: int
    then: Stand


#: A stand, met with these heads, whose next instant is at this time (ns).
Moment = tuple[Stand, Heads, int]


class Windows:
    """The windows of one plan on one machine."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stands: dict[Stand, Stand] = {}
        self._count = 0

    def stand(self, stand: Stand) -> Stand:
        """The one of equal stands that knows what follows."""
        return self._stands.setdefault(stand, stand)

    def replay(
        self, stand: Stand, heads: Heads, base_ns: int, numbers: Sequence[int], ledger: Ledger
    ) -> Moment:
        """As far as windows are known from a stand at `base_ns`; where that leads to.

        numbers  of the costs of the plan's operations
        """
        starts, ends, flow_ends = ledger.starts, ledger.ends, ledger.flow_ends
        stretches = self._layout.stretches
        while True:
            for extents, known in stand.onward.items():
                stretch = stretches.get((heads, extents)) or self._layout.stretch(heads, extents)
                window = known.get((stretch.form, stretch.pick(numbers)))
                if window is not None:
                    break
            else:
                return stand, heads, base_ns
            for op, (start_ns, end_ns, flows) in zip(stretch.done, window.spans):  # noqa: B905 - equally long, and often
                if start_ns is not None:
                    starts[op], flow_ends[op] = base_ns + start_ns, flows
                ends[op] = base_ns + end_ns
            stand, heads, base_ns = window.then, stretch.heads, base_ns + window.long_ns

    def learn(
        self, met: Moment, now: Moment, numbers: Sequence[int], ledger: Ledger
    ) -> None:
        """Remember what was simulated between two stands."""
        stand, heads, base_ns = met
        then, after, then_ns = now
        extents = tuple([new - old for new, old in zip(after, heads, strict=True)])
        if sum(extents) > MOST_OPERATIONS:
            return
        if self._count >= MOST_WINDOWS:
            self._forget()
        stretch = self._layout.stretch(heads, extents)
        spans = [(ledger.starts[op], ledger.ends[op], ledger.flow_ends[op]) for op in stretch.done]
        known = stand.onward.setdefault(extents, {})
        known[stretch.form, stretch.pick(numbers)] = Window(
            spans=tuple([(None if s < 0 else s - base_ns, e - base_ns, flows) for s, e, flows in spans]),
            long_ns=then_ns - base_ns, then=then,
        )  # fmt: skip
        self._count += 1

    def _forget(self) -> None:
        for stand in self._stands:
            stand.onward.clear()
        self._count = 0


def is_quiet(engine: Engine) -> bool:
    """Whether the engine, at the end of an instant, stands as a Stand can say."""
    for track in engine.side:
        if track.state not in _QUIET:
            return False
    own = engine.main[0]
    return own.state in _QUIET_COMPUTE and not (own.state == PROGRAM and own.cost.queue) and engine.slots.due_ns == NEVER


def stand_of(engine: Engine, base_ns: int) -> Stand:
    """How a quiet engine stands whose next instant is at `base_ns`."""
    own, pool = engine.main[0], engine.machine.pools[0]
    dues = []
    for track in engine.tracks:
        due_ns = 0
        if track.state in (LAUNCH, PROGRAM):
            due_ns = track.due_ns - base_ns
        elif track.state == FREE and track.costs[track.ops[track.head]].wake_ns is not None:
            due_ns = track.free_ns - base_ns
        dues.append(due_ns)
    under_way = None
    if own.state == PROGRAM:
        assert own.program is not None
        under_way = UnderWay(
            program=own.program, beside=own.beside, part=own.part, lag=own.lag, started_ns=own.start_ns - base_ns
        )
    return Stand(
        states=tuple([track.state for track in engine.tracks]), dues_ns=tuple(dues),
        rest=(engine.at_work, engine.stale, engine.slots.restless), places=pool and pool.places, under_way=under_way,
    )  # fmt: skip


def put(engine: Engine, stand: Stand, heads: Heads, base_ns: int) -> None:
    """Make a quiet engine stand so; its ledger knows all that ended."""
    for track, state, due_ns, head in zip(engine.tracks, stand.states, stand.dues_ns, heads, strict=True):
        track.state, track.head = state, head
        track.free_ns = track.ledger.ends[track.ops[head - 1]] if head else 0
        track.op = track.ops[head if state in (LAUNCH, PROGRAM) else max(0, head - 1)]
        track.cost = track.costs[track.op]
        track.due_ns = base_ns + due_ns if state in (LAUNCH, PROGRAM) else NEVER
    own, pool, under_way = engine.main[0], engine.machine.pools[0], stand.under_way
    if under_way is not None:
        own.program, own.beside, own.part, own.lag = (
            under_way.program, under_way.beside, under_way.part, under_way.lag,
        )  # fmt: skip
        own.start_ns = base_ns + under_way.started_ns
    else:
        own.program, own.lag = None, 1.0
    engine.at_work, engine.stale, engine.slots.restless = stand.rest
    engine.situation = ()
    engine.lanes_open = sum([state != DONE for state in stand.states])
    if pool is not None:
        pool.put(stand.places)
