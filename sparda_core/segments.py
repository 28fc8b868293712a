"""Segments: how a step is issued whose copies need their list of misses on the host. Torch-free.

The compute lane is cut at each such copy, and wherever it waits for one. The host takes up a copy (waits for its
list, submits it) as late as the plan lets it: right before the first segment that waits for the copy. So the
device has the segments before that one to run while the host is busy, and a plan that prefetches keeps computing
meanwhile. A plan that needs a copy at once is issued in its own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from sparda_core.plan import Lane, Op, StepPlan

#: Pieces that the host submits to the copy engine in one call, which begins when the call returns.
AT_ONCE = 64
#: Pieces of memory that the host gathers into in turn: into one, while a copy reads the other.
STAGED = 2


@attrs.frozen(kw_only=True)
class Segment:
    """Operations that are issued together.

    ops      in the plan's order: of the compute lane, or one copy
    on_host  True for a copy
    waits    copies that the compute lane waits for before the first of `ops`
    lists    copies whose list is whole once this segment has ended
    """

    ops: tuple[Op, ...]
    on_host: bool
    waits: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


def segments_of(plan: StepPlan) -> tuple[Segment, ...]:
    """The plan's segments in the order in which the host issues them. A copy that comes first is in no `lists`."""
    return tuple(_put_off(_cut(plan)))


def _cut(plan: StepPlan) -> list[Segment]:
    """In the plan's order."""
    lane_of = {op.name: op.lane for op in plan}
    found: list[Segment] = []
    for op in plan:
        waits = tuple(name for name in op.after if lane_of[name] != op.lane)
        if op.lane != Lane.COMPUTE:
            behind = next((at for at in range(len(found) - 1, -1, -1) if not found[at].on_host), None)
            if behind is not None:
                found[behind] = attrs.evolve(found[behind], lists=(*found[behind].lists, op.name))
            found.append(Segment(ops=(op,), on_host=True))
        elif found and not waits and not found[-1].on_host:
            found[-1] = attrs.evolve(found[-1], ops=(*found[-1].ops, op))
        else:
            found.append(Segment(ops=(op,), on_host=False, waits=waits))
    return found


def _put_off(found: Sequence[Segment]) -> Iterator[Segment]:
    """Copies come in their own order, each before whoever waits for it or for a later one."""
    pending: list[Segment] = []
    for segment in found:
        if segment.on_host:
            pending.append(segment)
            continue
        due = max((at + 1 for at, copy in enumerate(pending) if copy.ops[0].name in segment.waits), default=0)
        yield from pending[:due]
        del pending[:due]
        yield segment
    yield from pending
