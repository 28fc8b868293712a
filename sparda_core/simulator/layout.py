"""Layout: a plan as numbers, worked out once a plan: what each operation waits for, and who waits for it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence

import attrs

from sparda_core.plan import Lane, Phase, StepPlan
from sparda_core.segments import STAGED, segments_of
from sparda_core.simulator.launches import GATHERS, needs_host_list

#: Of every lane: how many of its operations have ended; and how many more.
Heads = tuple[int, ...]
Extents = tuple[int, ...]


@attrs.frozen(kw_only=True, eq=False)
class Stretch:
    """What lies between two moments of a plan, each given by the heads of all lanes.

    form   equal for stretches of this plan whose operations wait for each other alike; -1 where a lane is too short
    pick   of a list of something that each operation of the plan has, then of something else that each has: the
           former of the operations that end in the stretch, the latter of the new heads
    done   positions of the operations that end in it
    heads  afterwards
    """

    form: int
    pick: Callable[[Sequence[Hashable]], Hashable]
    done: tuple[int, ...]
    heads: Heads


@attrs.frozen(kw_only=True)
class Layout:
    """Operations by their position in the plan.

    lanes    positions of each lane's operations, for every lane that has one; the compute lane last
    compute  True where the last of `lanes` is the compute lane
    waits    of each operation: those of other lanes that must have ended before it starts
    order    in which the host issues them
    listed   of each operation: those that must have ended before the host takes it up, where it has to wait
    watched  whether an operation of another lane waits for it
    stretches  those looked at before
    """

    lanes: tuple[tuple[int, ...], ...]
    compute: bool
    waits: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    listed: tuple[tuple[int, ...], ...]
    watched: tuple[bool, ...]
    stretches: dict[tuple[Heads, Extents], Stretch] = attrs.field(factory=dict, eq=False, repr=False)
    _forms: dict[Hashable, int] = attrs.field(factory=dict, eq=False, repr=False)

    def stretch(self, heads: Heads, extents: Extents) -> Stretch:
        """The stretch from these heads on, by memory."""
        known = self.stretches.get((heads, extents))
        if known is None:
            known = self.stretches[heads, extents] = self._stretch(heads, extents)
        return known

    def _stretch(self, heads: Heads, extents: Extents) -> Stretch:
        after = tuple(head + extent for head, extent in zip(heads, extents, strict=True))
        if any(end > len(lane) for end, lane in zip(after, self.lanes, strict=True)):
            return Stretch(form=-1, pick=lambda _: None, done=(), heads=after)
        at = {op: (number, index) for number, lane in enumerate(self.lanes) for index, op in enumerate(lane)}

        def awaited(op: int) -> tuple[tuple[int, int], ...]:
            where = (at[wait] for wait in self.waits[op])
            return tuple((number, index - heads[number]) for number, index in where if index >= heads[number])

        # The new heads count: that they could not go on yet belongs to what happened.
        ops = [lane[head : end + 1] for lane, head, end in zip(self.lanes, heads, after, strict=True)]
        form = tuple((tuple(awaited(op) for op in lane), extent) for lane, extent in zip(ops, extents, strict=True))
        next_up = [lane[end] for lane, end in zip(self.lanes, after, strict=True) if end < len(lane)]
        done = [op for lane, extent in zip(ops, extents, strict=True) for op in lane[:extent]]
        return Stretch(
            form=self._forms.setdefault(form, len(self._forms)), done=tuple(done), heads=after,
            pick=operator.itemgetter(*done, *[len(self.waits) + op for op in next_up]),
        )  # fmt: skip


_KNOWN: dict[int, tuple[weakref.ref[StepPlan], Layout]] = {}


def layout_of(plan: StepPlan) -> Layout:
    """The plan's layout; worked out again only for another plan object."""
    key = id(plan)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is plan:
        return known[1]
    layout = _lay_out(plan)
    # An id is used again once its plan is gone: the entry goes with it.
    _KNOWN[key] = weakref.ref(plan, lambda _: _KNOWN.pop(key, None)), layout
    return layout


def _order(plan: StepPlan, at: Mapping[str, int]) -> tuple[int, ...]:
    """The plan's, unless its copies need a list on the host."""
    if not _host_lists(plan):
        return tuple(range(len(plan.ops)))
    return tuple(at[op.name] for segment in segments_of(plan) for op in segment.ops)


def _listed(plan: StepPlan, after: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """What an operation waits for; a host gather also for the copy that last read the memory it gathers into."""
    listed = list(after)
    if plan.engine == GATHERS and _host_lists(plan):
        copies = [position for position, op in enumerate(plan.ops) if op.lane != Lane.COMPUTE]
        for copy, before in zip(copies[STAGED:], copies, strict=False):
            listed[copy] = (*listed[copy], before)
    return tuple(listed)


def _host_lists(plan: StepPlan) -> bool:
    lanes = {op.lane for op in plan.ops}
    return needs_host_list(plan.engine) and plan.phase == Phase.DECODE and lanes == {Lane.COMPUTE, Lane.H2D}


def _lay_out(plan: StepPlan) -> Layout:
    at = {op.name: position for position, op in enumerate(plan.ops)}
    after = tuple(tuple(at[name] for name in op.after) for op in plan.ops)
    # Waits on one's own lane are kept by its order.
    waits = tuple(
        tuple(wait for wait in waiting if plan.ops[wait].lane != op.lane)
        for op, waiting in zip(plan.ops, after, strict=True)
    )
    watched = {wait for waiting in waits for wait in waiting}
    order = [*(lane for lane in Lane if lane != Lane.COMPUTE), Lane.COMPUTE]
    lanes = [tuple(i for i, op in enumerate(plan.ops) if op.lane == lane) for lane in order]
    return Layout(
        lanes=tuple(lane for lane in lanes if lane), compute=bool(lanes[-1]), waits=waits,
        order=_order(plan, at), listed=_listed(plan, after), watched=tuple(i in watched for i in range(len(plan.ops))),
    )  # fmt: skip
