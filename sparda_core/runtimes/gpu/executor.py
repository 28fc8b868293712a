"""The torch executor on a GPU: issues the operations of a plan to their lanes, in the plan's order.

A plan is cut into *pieces*. A piece issues everything without asking the device, so it can be captured. One
piece is the whole plan, unless its copies need a list on the host: then each copy is a piece that the host runs,
and pieces come in the order of `segments_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from sparda_core.errors import PlanError
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.runtimes.gpu.lanes import Lanes
from sparda_core.segments import Segment, segments_of

#: What issues one operation's kernels.
Issue = Callable[[Op], None]


@attrs.frozen
class Issued:
    """One operation, resolved.

    waits  operations of other lanes that it starts after
    mark   whether an operation of another lane, or the end of the step, waits for it
    """

    op: Op
    run: Issue
    waits: tuple[str, ...]
    mark: bool


@attrs.frozen(eq=False)
class Piece:
    """Operations that are issued together.

    waits     what the compute lane waits for before the first; outside of any capture
    on_host   whether the host looks at data on the way, so that it cannot be captured: it waits for the list first
    joins     copies that the compute lane waits for after the last
    lists     copies whose list it makes: behind its last operation `tell` writes each to where the host reads it
    """

    steps: tuple[Issued, ...]
    lanes: Lanes
    waits: tuple[str, ...] = ()
    on_host: bool = False
    joins: tuple[str, ...] = ()
    lists: tuple[Op, ...] = ()
    tell: Issue | None = None

    def begin(self) -> None:
        """Issue the waits that lie before it; the host's own it waits for."""
        for name in self.waits:
            self.lanes.wait(Lane.COMPUTE, name)
        if self.on_host:
            # What the host issues from then on starts after the list: the copies' lane need not wait for it again.
            for step in self.steps:
                self.lanes.hear(_behind_list(step.op))

    def issue(self) -> None:
        """Issue every operation once; to be used by the work of `lanes.step`."""
        lanes = self.lanes
        for step in self.steps:
            for name in step.waits:
                lanes.wait(step.op.lane, name)
            if step.op.lane == Lane.COMPUTE:
                step.run(step.op)
            else:
                with lanes.on(step.op.lane):
                    step.run(step.op)
            if step.mark:
                lanes.mark(step.op.lane, step.op.name)
        for name in self.joins:
            lanes.wait(Lane.COMPUTE, name)
        if self.tell is not None:
            for op in self.lists:
                self.tell(op)

    def end(self) -> None:
        """Mark where it ends, for the host that waits for the lists it made; outside of any capture."""
        for op in self.lists:
            self.lanes.mark(Lane.COMPUTE, _behind_list(op))


def _behind_list(op: Op) -> str:
    """Name of the mark behind what makes the list of a copy."""
    return f"list of {op.name}"


def pieces_of(
    plan: StepPlan, table: Mapping[str, Issue], lanes: Lanes, *, host_lists: bool, gate: Issue | None = None,
    tell: Issue | None = None,
) -> tuple[Piece, ...]:  # fmt: skip
    """The plan, bound; raises PlanError for an operation that nothing is bound to.

    table       kind -> what issues it
    host_lists  whether copies need their list on the host: cuts the plan at each of them
    gate        where the first copy issued is that of all layers: given a copy, holds the compute lane until its
                layer's blocks are there. Then the other copies issue nothing, and no lane waits for them
    tell        given a copy whose list the host needs, writes that list to the host's memory; issued to the compute
                lane, right behind what makes the list
    """
    steps = _resolve(plan, table)
    if gate is not None:
        steps = _gated(steps, gate)
    if not host_lists:
        return (Piece(steps, lanes, joins=_unjoined(steps)),)
    by_name, segments = {step.op.name: step for step in steps}, segments_of(plan)
    listed = {name for segment in segments for name in segment.lists}
    for op in (segment.ops[0] for segment in segments if segment.on_host):
        if op.name not in listed:
            raise PlanError(f"op {op.name!r} comes first: no operation before it makes its list")
    return tuple(_cut(segment, by_name, lanes, tell) for segment in segments)


def _cut(segment: Segment, by_name: Mapping[str, Issued], lanes: Lanes, tell: Issue | None) -> Piece:
    steps = [by_name[op.name] for op in segment.ops]
    if segment.on_host:
        return Piece(tuple(attrs.evolve(step, waits=()) for step in steps), lanes, on_host=True)
    # A capture knows no event from outside: waits stand before it, and marks of the compute lane come after it.
    return Piece(
        tuple(attrs.evolve(step, waits=(), mark=False) for step in steps), lanes, waits=segment.waits,
        lists=tuple(by_name[name].op for name in segment.lists), tell=tell,
    )  # fmt: skip


def _resolve(plan: StepPlan, table: Mapping[str, Issue]) -> tuple[Issued, ...]:
    lane_of = {op.name: op.lane for op in plan}
    for op in plan:
        if op.lane not in (Lane.COMPUTE, Lane.H2D) or op.kind not in table:
            raise PlanError(f"op {op.name!r} on lane {op.lane!r} has no binding; bound kinds: {sorted(table)}")
    waits = {op.name: tuple(name for name in op.after if lane_of[name] != op.lane) for op in plan}
    waited = {name for names in waits.values() for name in names}
    return tuple(
        Issued(op, table[op.kind], waits[op.name], op.name in waited or op.lane != Lane.COMPUTE) for op in plan
    )


def _gated(steps: Sequence[Issued], gate: Issue) -> tuple[Issued, ...]:
    """One copy, and a gate wherever the compute lane would wait for the copy of a layer."""
    copies = {step.op.name: step.op for step in steps if step.op.lane == Lane.H2D}
    first = next((step for step in steps if step.op.lane == Lane.H2D), None)
    waited = first.waits if first is not None else ()
    return tuple(
        attrs.evolve(step, run=_behind(gate, [copies[name] for name in step.waits], step.run), waits=(),
                     mark=step.op.name in waited)
        if step.op.lane == Lane.COMPUTE else step
        for step in steps
        if step.op.lane == Lane.COMPUTE or step is first
    )  # fmt: skip


def _behind(gate: Issue, copies: Sequence[Op], run: Issue) -> Issue:
    if not copies:
        return run

    def issue(op: Op) -> None:
        for copy in copies:
            gate(copy)
        run(op)

    return issue


def _unjoined(steps: Sequence[Issued]) -> tuple[str, ...]:
    """The last copy, where no operation of the compute lane waits for it: a captured lane must be joined again."""
    copies = [step.op.name for step in steps if step.op.lane == Lane.H2D]
    joined = {name for step in steps if step.op.lane == Lane.COMPUTE for name in step.waits}
    return tuple(name for name in copies[-1:] if name not in joined)
