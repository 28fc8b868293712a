"""The torch executor: runs a StepPlan through a table of bindings.

On a CPU the compute lane is the calling thread and the h2d lane a worker thread. On a GPU the same
plan is bound to streams and events: what changes is the table and the lanes, not this loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import attrs

from sparda_core.errors import PlanError
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.spans import Span, Timeline

StateT = TypeVar("StateT")


class Ticket(Protocol):
    """A transfer under way."""

    start_ns: int
    end_ns: int

    def done(self) -> bool:
        """Whether every block has arrived."""

    def wait(self) -> None:
        """Block until it has ended; raises what the transfer raised."""

    def settle(self) -> None:
        """Block until it has ended, however it ended."""


@attrs.frozen(kw_only=True)
class Bindings(Generic[StateT]):
    """What runs an operation of each kind.

    compute  kind -> function(op, state), run on the compute lane
    moves    kind -> function(op, state) -> Ticket, or None where nothing has to move
    waited   called with (op, ticket) when the compute lane reaches an operation whose transfer is not done
    """

    compute: Mapping[str, Callable[[Op, StateT], None]]
    moves: Mapping[str, Callable[[Op, StateT], Ticket | None]]
    waited: Callable[[Op, Ticket, StateT], None]


@attrs.frozen
class _Step(Generic[StateT]):
    """One operation, resolved: its function and the transfers it waits for."""

    op: Op
    run: Callable[[Op, StateT], Ticket | None] | Callable[[Op, StateT], None]
    waits: tuple[Op, ...]


class Executor(Generic[StateT]):
    """Runs one plan, many times. Every function is looked up once, when it is built."""

    def __init__(self, plan: StepPlan, bindings: Bindings[StateT]) -> None:
        self._waited = bindings.waited
        ops = {op.name: op for op in plan}
        self._steps: list[_Step[StateT]] = []
        for op in plan:
            table = bindings.compute if op.lane == Lane.COMPUTE else bindings.moves
            if op.lane not in (Lane.COMPUTE, Lane.H2D) or op.kind not in table:
                raise PlanError(f"op {op.name!r} on lane {op.lane!r} has no binding; bound kinds: {sorted(table)}")
            moved = tuple(ops[name] for name in op.after if ops[name].lane == Lane.H2D)
            self._steps.append(_Step(op, table[op.kind], moved))

    def run(self, state: StateT, *, record: bool = False) -> Timeline | None:
        """Run every operation once. With `record`, when each of them ran; nanoseconds from the start."""
        tickets: dict[str, Ticket | None] = {}
        spans: list[Span] = []
        origin_ns = time.perf_counter_ns()
        try:
            for step in self._steps:
                self._await(step, tickets, state)
                start_ns = time.perf_counter_ns()
                outcome = step.run(step.op, state)
                if step.op.lane != Lane.COMPUTE:
                    tickets[step.op.name] = outcome
                elif record:
                    spans.append(_span(step.op, start_ns - origin_ns, time.perf_counter_ns() - origin_ns))
        except BaseException:
            # No transfer may still be writing when the caller cleans up; the first failure is the one to report.
            for ticket in tickets.values():
                if ticket is not None:
                    ticket.settle()
            raise
        if not record:
            return None
        moved = [(step.op, tickets[step.op.name]) for step in self._steps if step.op.name in tickets]
        spans += [_span(op, t.start_ns - origin_ns, t.end_ns - origin_ns) for op, t in moved if t is not None]
        return Timeline(label="measured", spans=spans)

    def _await(self, step: _Step[StateT], tickets: Mapping[str, Ticket | None], state: StateT) -> None:
        for op in step.waits:
            ticket = tickets[op.name]
            if ticket is None:
                continue
            if step.op.lane == Lane.COMPUTE and not ticket.done():
                self._waited(op, ticket, state)
            ticket.wait()


def _span(op: Op, start_ns: int, end_ns: int) -> Span:
    return Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=start_ns, end_ns=end_ns)
