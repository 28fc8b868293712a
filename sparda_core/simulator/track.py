"""Track: one lane of one replica under way, and the operation that stands at its head."""

from __future__ import annotations

from collections.abc import Sequence

from sparda_core.simulator.fluid import NEVER, Flow
from sparda_core.simulator.machine import Cost

# Where the operation at a lane's head stands. Plain numbers: they are compared at every turn.
FREE = 0  # waits for operations of other lanes
ISSUE = 1  # waits for the host
LAUNCH = 2  # in its launch gap
QUEUE = 3  # waits for its turn in a queue
SEAT = 4  # waits for SMs
LATENCY = 5  # has begun; its flows have not
FLOWS = 6  # its flows move
DONE = 7  # the lane has ended

# What must be brought up to date before time goes on: nothing, rates alone, or slowdowns and rates.
FRESH, RATES, SLOWDOWNS = range(3)

#: States in which a compute lane is at work: from the first operation of a chain until it waits for something.
AT_WORK = frozenset({LAUNCH, LATENCY, FLOWS})


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
    due_ns    end of the launch gap, of the latency, or when the host has issued; NEVER for none of them
    free_ns   when the operation before it ended
    wanted_ns when it was ready for SMs
    left      flows that have not ended
    kinds     of its flows, as slowed by what runs beside it; empty before that is known
    placed    TPC of each thread block of a copy kernel that has its SM
    lag       how much longer the kernel under way takes for want of SMs, >= 1
    kernel    which kernel of the operation is under way
    retakes   True at a boundary between two kernels: SMs were given back and must be taken anew
    """

    __slots__ = (
        "compute", "cost", "costs", "due_ns", "flow_ns", "flows", "free_ns", "head", "issued", "kernel", "kinds",
        "lag", "ledger", "left", "op", "ops", "placed", "replica", "retakes", "start_ns", "state", "waited_ns",
        "wanted_ns",
    )  # fmt: skip

    def __init__(
        self, ops: Sequence[int], costs: Sequence[Cost], ledger: Ledger, replica: int, *, compute: bool
    ) -> None:
        self.ops, self.costs, self.ledger, self.replica, self.compute = ops, costs, ledger, replica, compute
        self.issued: list[int] | None = None
        self.state = FREE
        self.head = self.free_ns = self.waited_ns = self.start_ns = self.flow_ns = self.left = self.kernel = 0
        self.wanted_ns = 0
        self.op, self.cost = ops[0], costs[ops[0]]
        self.due_ns = NEVER
        self.flows: list[Flow] = []
        self.kinds: tuple[int, ...] = ()
        self.placed: tuple[int, ...] = ()
        self.lag = 1.0
        self.retakes = False

    def open_flows(self, now_ns: int) -> list[Flow]:
        """Begin the flows of the operation at the head; those that move anything are returned."""
        self.state, self.flow_ns, self.due_ns, self.kernel = FLOWS, now_ns, NEVER, 0
        kinds = self.kinds or (-1,) * len(self.cost.sizes)
        self.flows = [Flow(size, kind, self) for size, kind in zip(self.cost.sizes, kinds, strict=True)]
        moving = [flow for flow in self.flows if flow.size]
        if len(moving) < len(self.flows):
            for flow in self.flows:
                if not flow.size:
                    flow.end_ns = now_ns
        self.left = len(moving)
        return moving

    def set_kinds(self, kinds: tuple[int, ...]) -> None:
        """Its flows are slowed otherwise from now on."""
        if kinds is not self.kinds:
            self.kinds = kinds
            for flow, kind in zip(self.flows, kinds, strict=False):
                flow.kind = kind
