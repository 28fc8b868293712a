"""A machine whose prices are written down by hand, and random schedules for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs
from hypothesis import strategies as st

from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.simulator import run
from sparda_core.simulator.profile import FLOPS, HBM, LINK, Charge, Price, Profile
from sparda_core.spans import Span
from sparda_core.work import Work
from tests.simulator.scenes import facts, plan

#: Units a second: a microsecond is 1e8 FLOPs, 1e6 bytes of device memory, 5e4 bytes of link.
RATES = {"flops": 1e14, "hbm": 1e12, "h2d": 5e10, "d2h": 5e10, "host": 8e10}
Log = list[tuple[int, dict[str, float]]]


@attrs.frozen(kw_only=True)
class Machine(Profile):
    """Says for each operation, by name, the price that it was given."""

    device: ClassVar[str] = "gpu"
    engines: ClassVar[tuple[str, ...]] = ("uva", "copy-engine", "cpu-gather")

    name: str = "by hand"
    title: str = "prices by hand"
    date: str = "2026-11-30"
    rates: Mapping[str, float] = attrs.field(factory=lambda: dict(RATES))
    prices: Mapping[str, Price]
    between_s: float = 0.0
    sm_count: int = 0
    shares: frozenset[str] = frozenset()

    @property
    def sms(self) -> int:
        return self.sm_count

    @property
    def shared(self) -> frozenset[str]:
        return self.shares

    def capacity(self) -> dict[str, float]:
        return dict(self.rates)

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        return self.prices[op.name]

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        return 1.0

    @property
    def step_s(self) -> float:
        return self.between_s

    @property
    def device_bytes(self) -> float:
        return 64e9

    @property
    def reserved_bytes(self) -> float:
        return 0.0

    @property
    def host_bytes(self) -> float | None:
        return 256e9

    def with_link(self, bytes_per_s: float) -> Self:
        by = bytes_per_s / self.rates["h2d"]
        return attrs.evolve(self, rates={**self.rates, "h2d": bytes_per_s, "d2h": self.rates["d2h"] * by})

    def kernel_ceilings(self) -> tuple[float, float]:
        return self.rates["flops"], self.rates["hbm"]


@attrs.frozen(kw_only=True)
class Schedule:
    """A plan, the machine that prices it."""

    plan: StepPlan
    machine: Machine

    def run(self, log: Log | None = None, **how: Any) -> tuple[dict[str, Span], int]:
        """Spans by name and the length of one step, in ns; `how` as run_step takes it."""
        watch = None if log is None else lambda now_ns, usage: log.append((now_ns, dict(usage)))
        spans, long_ns = run.run_step(self.plan, facts(), no_work, self.machine, watch, **how)
        return {span.name: span for span in spans}, long_ns

    def price(self, name: str) -> Price:
        return self.machine.prices[name]

    def repriced(self, change: Any) -> Schedule:
        """The same plan with every price changed."""
        prices = {name: change(price) for name, price in self.machine.prices.items()}
        return attrs.evolve(self, machine=attrs.evolve(self.machine, prices=prices))

    def alone_ns(self, name: str) -> int:
        """What one operation takes with nothing beside it, its launch gap included."""
        return attrs.evolve(self, plan=plan(attrs.evolve(self.plan[name], after=()))).run()[1]


def no_work(op: Op, seen: object) -> Work:
    """Another one for each operation: equal works of a kind have one price."""
    return Work(pieces=op.layer)


def charges_on(lane: Lane, sizes: Mapping[str, int], share: float) -> tuple[Charge, ...]:
    """Flows of an operation: FLOPs and device memory on the compute lane, bytes of link on the others."""
    made: tuple[Charge, ...]
    if lane == Lane.COMPUTE:
        made = (
            Charge(label=FLOPS, size=sizes["flops"], uses={"flops": 1.0}, cap=RATES["flops"] * share),
            Charge(label=HBM, size=sizes["hbm"], uses={"hbm": 1.0}, cap=RATES["hbm"]),
        )
    else:
        way, back = ("h2d", "d2h") if lane == Lane.H2D else ("d2h", "h2d")
        uses = {way: 1.0, back: 0.25, "hbm": 2.0, "host": 1.0}
        made = (Charge(label=LINK, size=sizes["link"], uses=uses, cap=math.inf),)
    return tuple(charge for charge in made if charge.size)


sizes = st.fixed_dictionaries(
    {"flops": st.integers(0, 10**9), "hbm": st.integers(0, 10**7), "link": st.integers(0, 10**6)}
)
#: Whole nanoseconds: no rounding of their own.
short = st.sampled_from([0.0, 1e-6, 2.5e-6])


@st.composite
def schedules(draw: st.DrawFn, *, most: int = 10) -> Schedule:
    """Any lawful plan of up to `most` operations on three lanes, with prices."""
    ops: list[Op] = []
    prices: dict[str, Price] = {}
    for layer in range(draw(st.integers(1, most))):
        lane = draw(st.sampled_from([Lane.COMPUTE, Lane.COMPUTE, Lane.H2D, Lane.D2H]))
        after = draw(st.lists(st.sampled_from([op.name for op in ops]), unique=True, max_size=3)) if ops else []
        op = Op(kind="op", layer=layer, lane=lane, after=tuple(after))
        prices[op.name] = Price(
            launch_s=draw(short), latency_s=draw(short), copies=lane != Lane.COMPUTE,
            charges=charges_on(lane, draw(sizes), draw(st.sampled_from([0.3, 1.0]))),
        )  # fmt: skip
        ops.append(op)
    return Schedule(plan=plan(*ops), machine=Machine(prices=prices))
