"""Track: one lane of one replica under way, and the operation that stands at its head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparda_core.simulator.fluid import NEVER, Flow
from sparda_core.simulator.machine import Cost, Situation

if TYPE_CHECKING:
    from sparda_core.simulator.programs import Program

# Where the operation at a lane's head stands. Plain numbers: they are compared at every turn.
FREE = 0  # waits for operations of other lanes
ISSUE = 1  # waits for the host
LAUNCH = 2  # in its launch gap
QUEUE = 3  # waits for its turn in a queue
SEAT = 4  # waits for SMs
LATENCY = 5  # has begun; its flows have not
FLOWS = 6  # its flows move
PROGRAM = 7  # runs by its program: its flows are not spelled out
DONE = 8  # the lane has ended

#: States in which a compute lane is at work: from the first operation of a chain until it waits for something.
AT_WORK = frozenset({LAUNCH, LATENCY, FLOWS, PROGRAM})


class Ledger:
    """What happened to each operation of one replica, by its position in the plan; -1 for not yet.

    ends      when it ended, whether or not it left a span
    starts    when its span began; -1 where it leaves none
    flow_ends when each of its flows ended, counted from the first one's start
    """

    __slots__ = ("ends", "flow_ends", "starts")

    def __init__(self, operations: int) -> None:
        self.starts, self.ends = [-1] * operations, [-1] * operations
        self.flow_ends: list[tuple[int, ...]] = [()] * operations


class Track:
    """One lane of one replica.

    head      position in `ops` of the operation at its head; `op` is that operation's position in the plan
    due_ns    when it next does something of itself: end of the launch gap or the latency, the next of its
              flows to end; NEVER where it waits for something else
    free_ns   when the operation before it ended
    wanted_ns when it was ready for SMs
    part      number of its cost with the SMs it has (Machine.part)
    flows     all of its flows; `live` those that have not ended, and `mask` which those are, as bits
    placed    TPC of each SM that a copy kernel holds; `late` where the first was taken beside a compute kernel
    lag       how much longer the kernel under way takes for want of SMs, >= 1
    program   what it runs by in state PROGRAM, and what runs `beside` it then (Machine.solve)
    kernel    which kernel of the operation is under way
    retakes   True at a boundary between two kernels: SMs were given back and must be taken anew
    """

    __slots__ = (
        "beside", "compute", "cost", "costs", "due_ns", "flow_ns", "flows", "free_ns", "head", "issued", "kernel",
        "lag", "late", "ledger", "live", "mask", "op", "ops", "part", "placed", "program", "replica", "retakes",
        "start_ns", "state", "waited_ns", "wanted_ns",
    )  # fmt: skip

    def __init__(
        self, ops: Sequence[int], costs: Sequence[Cost], ledger: Ledger, replica: int, *, compute: bool
    ) -> None:
        self.ops, self.costs, self.ledger, self.replica, self.compute = ops, costs, ledger, replica, compute
        self.issued: list[int] | None = None
        self.state = FREE
        self.head = self.free_ns = self.waited_ns = self.wanted_ns = self.start_ns = self.flow_ns = 0
        self.part = self.mask = self.kernel = 0
        self.op, self.cost = ops[0], costs[ops[0]]
        self.due_ns = NEVER
        self.flows: list[Flow] = []
        self.live: list[Flow] = []
        self.placed: tuple[int, ...] = ()
        self.late = False
        self.lag = 1.0
        self.retakes = False
        self.program: Program | None = None
        self.beside: Situation = ()

    @property
    def sitting(self) -> int:
        """Thread blocks of a copy kernel that have a place: as many as its SMs hold."""
        grid = self.cost.grid
        return 0 if grid is None else min(grid.ctas, len(self.placed) * grid.per_sm)

    @property
    def stand(self) -> int:
        """The same as `Machine.part` wants it: less than 0 where the copy came late."""
        return -self.sitting if self.late else self.sitting

    def open_flows(self, now_ns: int) -> None:
        """Begin the flows of the operation at the head."""
        self.state, self.flow_ns, self.due_ns, self.kernel = FLOWS, now_ns, NEVER, 0
        self.flows = flows = [Flow(size, bit) for bit, size in enumerate(self.cost.sizes)]
        self.mask = self.cost.mask
        self.live = [flow for flow in flows if flow.size]
        if len(self.live) < len(flows):
            for flow in flows:
                if not flow.size:
                    flow.end_ns = now_ns

    def end_flows(self, now_ns: int) -> None:
        """End those flows that are due."""
        for flow in self.live:
            if flow.due_ns <= now_ns:
                flow.moved, flow.end_ns = flow.size, now_ns
                self.mask &= ~(1 << flow.kind)
        self.live = [flow for flow in self.live if flow.end_ns is None]

    def set_rates(self, rates: tuple[float, ...], now_ns: int) -> None:
        """Rates of its live flows from now on; those that keep theirs are not touched."""
        due_ns = NEVER
        for flow, rate in zip(self.live, rates):  # noqa: B905 - a check for every event would cost a tenth of all
            if rate != flow.rate:
                flow.change_rate(rate, now_ns)
            if flow.due_ns < due_ns:  # noqa: PLR1730 - so would a call of min
                due_ns = flow.due_ns
        self.due_ns = due_ns
