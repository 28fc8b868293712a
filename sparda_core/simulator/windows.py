"""Windows: what all lanes do from one quiet moment to the next, by memory.

A moment is *quiet* where no operation is under way: every lane waits, or is in a launch gap, or has ended.
Such a state is small (`Stand`), and what follows from it depends on nothing else but the operations that
come next, what they cost, and which of them wait for which. So where an equal stand meets equal operations,
what happened the first time happens again, later by a whole number of nanoseconds; layers are much alike,
and steps too. What was never met is simulated, and remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from sparda_core.simulator.fluid import NEVER
from sparda_core.simulator.layout import Extents, Heads, Layout, Stretch
from sparda_core.simulator.track import DONE, FREE, LAUNCH, Ledger

if TYPE_CHECKING:
    from sparda_core.simulator.engine import Engine

#: A window of more operations than this is not remembered: layers come again, whole steps need not.
MOST_OPERATIONS = 48
#: Where every window differs the memory must end somewhere.
MOST_WINDOWS = 10_000
_QUIET = frozenset({FREE, LAUNCH, DONE})

#: Of each lane its state and a time, then who is at work and whether SMs are restless. The time counts from the
#: next instant: when a launch gap is over; since when a lane is free, where its next launch depends on that; else 0.
Key = tuple[int | None, ...]
#: Start, end and ends of flows of one operation.
_Span = tuple[int, int, tuple[int, ...]]
#: By what the operations of a stretch cost: what happened.
_Known = dict[Hashable, "Window"]


class Stand:
    """A quiet state, whenever and wherever in a plan it is met.

    onward  the windows known from here: by how far the heads of the lanes go, and the form of that stretch
    ways    the same, for heads that were met here: each stretch of theirs with its windows
    """

    __slots__ = ("key", "onward", "ways")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.onward: dict[tuple[Extents, int], _Known] = {}
        self.ways: dict[Heads, list[tuple[Stretch, _Known]]] = {}


#: A stand, met with these heads, whose next instant is at this time (ns).
Moment = tuple[Stand, Heads, int]


class Window:
    """What happened from one stand to the next, which is `then`, `long_ns` later.

    spans  of each operation that ended, in the order of its stretch; times count from the first stand's. Most windows
           of a step that equals no other are never asked for: None until `tell`
    skips  which of them left no span
    """

    __slots__ = ("_from", "long_ns", "skips", "spans", "then")

    def __init__(self, ledger: Ledger, stretch: Stretch, base_ns: int, then: Stand, then_ns: int) -> None:
        self.then, self.long_ns = then, then_ns - base_ns
        self._from: tuple[Ledger, Stretch, int] | None = (ledger, stretch, base_ns)
        self.spans: list[_Span] | None = None
        self.skips: list[int] = []

    def tell(self) -> list[_Span]:
        """Work out `spans` and `skips`."""
        assert self._from is not None
        ledger, stretch, base_ns = self._from
        self._from = None
        told = [(ledger.starts[op], ledger.ends[op], ledger.flow_ends[op]) for op in stretch.done]
        self.skips = [number for number, (start_ns, _, _) in enumerate(told) if start_ns < 0]
        self.spans = [(start_ns - base_ns, end_ns - base_ns, flows) for start_ns, end_ns, flows in told]
        return self.spans


class Windows:
    """The windows of one plan on one machine."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stands: dict[Key, Stand] = {}
        self._count = 0

    def stand(self, key: Key) -> Stand:
        """The stand with this key."""
        stand = self._stands.get(key)
        if stand is None:
            stand = self._stands[key] = Stand(key)
        return stand

    def replay(self, moment: Moment, keys: Sequence[Hashable], ledger: Ledger) -> Moment:
        """As far as windows are known from here; where that leads to.

        keys  Bill.keys
        """
        stand, heads, base_ns = moment
        starts, ends, flow_ends = ledger.starts, ledger.ends, ledger.flow_ends
        while True:
            ways = stand.ways.get(heads)
            for stretch, known in self._ways(stand, heads) if ways is None else ways:
                window = known.get(stretch.pick(keys))
                if window is not None:
                    break
            else:
                return stand, heads, base_ns
            done, spans = stretch.done, window.spans
            for op, (start_ns, end_ns, flows) in zip(done, window.tell() if spans is None else spans):  # noqa: B905
                starts[op], ends[op], flow_ends[op] = base_ns + start_ns, base_ns + end_ns, flows
            for number in window.skips:
                starts[done[number]] = -1
            stand, heads, base_ns = window.then, stretch.heads, base_ns + window.long_ns

    def _ways(self, stand: Stand, heads: Heads) -> list[tuple[Stretch, _Known]]:
        each = ((self._layout.stretch(heads, extents), form, known) for (extents, form), known in stand.onward.items())
        ways = stand.ways[heads] = [(stretch, known) for stretch, form, known in each if stretch.form == form]
        return ways

    def learn(self, met: Moment, now: Moment, keys: Sequence[Hashable], ledger: Ledger) -> None:
        """Remember what was simulated between two moments."""
        stand, heads, base_ns = met
        then, after, then_ns = now
        extents = tuple([new - old for new, old in zip(after, heads, strict=True)])
        if sum(extents) > MOST_OPERATIONS:
            return
        if self._count >= MOST_WINDOWS:
            # Nobody leads to a stand that is forgotten but windows that are.
            self._stands, self._count = {}, 0
            stand, then = self.stand(stand.key), self.stand(then.key)
        stretch = self._layout.stretch(heads, extents)
        way = extents, stretch.form
        if way not in stand.onward:
            stand.onward[way] = {}
            stand.ways.clear()
        stand.onward[way][stretch.pick(keys)] = Window(ledger, stretch, base_ns, then, then_ns)
        self._count += 1


def is_quiet(engine: Engine) -> bool:
    """Whether no operation is under way."""
    for track in engine.tracks:  # noqa: SIM110 - asked at every turn: a generator costs more than the rest of it
        if track.state not in _QUIET:
            return False
    return True


def key_of(engine: Engine, base_ns: int) -> Key:
    """How a quiet engine stands whose next instant is at `base_ns`."""
    key: list[int | None] = []
    for track in engine.tracks:
        state = track.state
        if state == LAUNCH:
            key += (LAUNCH, track.due_ns - base_ns)
        elif state == FREE:
            wakes = track.costs[track.ops[track.head]].wake_ns is not None
            key += (FREE, track.free_ns - base_ns if wakes else 0)
        else:
            key += (DONE, 0)
    key += (engine.at_work, engine.slots.restless)
    return tuple(key)


def put(engine: Engine, moment: Moment) -> None:
    """Make a quiet engine stand so; its ledger knows all that ended."""
    stand, heads, base_ns = moment
    key = stand.key
    engine.lanes_open = len(heads)
    for number, (track, head) in enumerate(zip(engine.tracks, heads, strict=True)):
        state, due_ns = key[2 * number], key[2 * number + 1]
        assert state is not None
        assert due_ns is not None
        track.state, track.head, track.due_ns = state, head, NEVER
        track.free_ns = track.ledger.ends[track.ops[head - 1]] if head else 0
        if state == LAUNCH:
            track.op, track.due_ns = track.ops[head], base_ns + due_ns
            track.cost = track.costs[track.op]
        elif state == DONE:
            engine.lanes_open -= 1
    engine.at_work, engine.slots.restless = key[-2], bool(key[-1])
