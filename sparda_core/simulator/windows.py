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
#: Start (None: no span), end and ends of flows of one operation.
_Span = tuple[int | None, int, tuple[int, ...]]


class Stand:
    """A quiet state, whenever and wherever in a plan it is met.

    onward  the windows known from here: by how far the heads of the lanes go, then by operations
    """

    __slots__ = ("key", "onward")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.onward: dict[Extents, dict[Hashable, Window]] = {}


#: A stand, met with these heads, whose next instant is at this time (ns).
Moment = tuple[Stand, Heads, int]


class Window:
    """What happened from one stand to the next, which is `then`, `long_ns` later."""

    __slots__ = ("_from", "_spans", "long_ns", "then")

    def __init__(self, ledger: Ledger, stretch: Stretch, base_ns: int, then: Stand, then_ns: int) -> None:
        self.then, self.long_ns = then, then_ns - base_ns
        self._from: tuple[Ledger, Stretch, int] | None = (ledger, stretch, base_ns)
        self._spans: list[_Span] = []

    @property
    def spans(self) -> list[_Span]:
        """Of each operation that ended, in the order of its stretch; times count from the first stand's."""
        if self._from is not None:
            # Most windows of a step that equals no other are never asked for.
            ledger, stretch, base_ns = self._from
            self._from = None
            told = [(ledger.starts[op], ledger.ends[op], ledger.flow_ends[op]) for op in stretch.done]
            self._spans = [(None if s < 0 else s - base_ns, e - base_ns, flows) for s, e, flows in told]
        return self._spans


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
        stretches = self._layout.stretches
        while True:
            for extents, known in stand.onward.items():
                stretch = stretches.get((heads, extents)) or self._layout.stretch(heads, extents)
                window = known.get((stretch.form, stretch.pick(keys)))
                if window is not None:
                    break
            else:
                return stand, heads, base_ns
            for op, (start_ns, end_ns, flows) in zip(stretch.done, window.spans):  # noqa: B905 - as long; asked often
                if start_ns is not None:
                    starts[op], flow_ends[op] = base_ns + start_ns, flows
                ends[op] = base_ns + end_ns
            stand, heads, base_ns = window.then, stretch.heads, base_ns + window.long_ns

    def learn(self, met: Moment, now: Moment, keys: Sequence[Hashable], ledger: Ledger) -> None:
        """Remember what was simulated between two moments."""
        stand, heads, base_ns = met
        then, after, then_ns = now
        extents = tuple([new - old for new, old in zip(after, heads, strict=True)])
        if sum(extents) > MOST_OPERATIONS:
            return
        if self._count >= MOST_WINDOWS:
            self._forget()
        stretch = self._layout.stretch(heads, extents)
        known = stand.onward.setdefault(extents, {})
        known[stretch.form, stretch.pick(keys)] = Window(ledger, stretch, base_ns, then, then_ns)
        self._count += 1

    def _forget(self) -> None:
        for stand in self._stands.values():
            stand.onward.clear()
        self._count = 0


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
