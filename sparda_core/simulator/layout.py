"""Layout: a plan as numbers, worked out once a plan: what each operation waits for, and who waits for it."""

from __future__ import annotations

import weakref

import attrs

from sparda_core.plan import Lane, StepPlan


@attrs.frozen(kw_only=True)
class Layout:
    """Operations by their position in the plan.

    lanes    positions of each lane's operations, for every lane that has one; the compute lane last
    compute  True where the last of `lanes` is the compute lane
    waits    of each operation: those of other lanes that must have ended before it starts
    after    of each operation: all of `Op.after`
    watched  whether an operation of another lane waits for it
    """

    lanes: tuple[tuple[int, ...], ...]
    compute: bool
    waits: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    watched: tuple[bool, ...]


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
        lanes=tuple(lane for lane in lanes if lane), compute=bool(lanes[-1]), waits=waits, after=after,
        watched=tuple(i in watched for i in range(len(plan.ops))),
    )  # fmt: skip
