"""A machine of round numbers whose SMs are modelled, for tests of slots, queues and the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import attrs

from sparda_core.plan import Op, StepPlan
from sparda_core.simulator.profile import FLOPS, LINK, Charge, Grid, Price, Profile
from sparda_core.simulator.run import Simulator
from sparda_core.work import Work

#: Flows of these tests count nanoseconds alone.
UNIT = 1e9


def busy(ns: float, *, resource: str = FLOPS, label: str = FLOPS, **price: Any) -> Price:
    """An operation that takes `ns` alone on a resource."""
    return Price(charges=(Charge(label=label, size=ns, uses={resource: 1.0}, cap=UNIT),), **price)


def copy(
    ns: float, ctas: int = 1, *, cluster: int = 1, caps: Sequence[tuple[float, float]] = (), **price: Any
) -> Price:
    """A copy kernel: `ns` alone at full rate, one SM a thread block."""
    grid = Grid(ctas=ctas, cluster=cluster, whole_sm=True)
    return busy(
        ns, resource="h2d", label=LINK, copies=True, ctas=ctas, grid=grid,
        copy_caps=tuple((alone * UNIT, beside * UNIT) for alone, beside in caps), **price,
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class Seats(Profile):
    """Prices are made by hand; `alike` is the slowdown of everything beside anything."""

    device: ClassVar[str] = "gpu"
    engines: ClassVar[tuple[str, ...]] = ("uva",)

    name: str = "seats"
    title: str = "round numbers"
    date: str = "2026-11-30"
    slots: int = 8
    alike: float = 1.0
    host: float = UNIT
    share_host: bool = False

    def capacity(self) -> dict[str, float]:
        return {"flops": UNIT, "hbm": 2 * UNIT, "h2d": UNIT, "host": self.host}

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        raise NotImplementedError

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        return self.alike

    @property
    def sms(self) -> int:
        return self.slots

    @property
    def shared(self) -> frozenset[str]:
        return frozenset({"host"} if self.share_host else ())

    @property
    def step_s(self) -> float:
        return 0.0

    @property
    def device_bytes(self) -> float:
        return 1e9

    @property
    def reserved_bytes(self) -> float:
        return 0.0

    @property
    def host_bytes(self) -> float | None:
        return 1e9

    def with_link(self, bytes_per_s: float) -> Self:
        raise NotImplementedError

    def kernel_ceilings(self) -> tuple[float, float]:
        return UNIT, UNIT


def ran(
    made: StepPlan, prices: Sequence[Price], profile: Seats | None = None, **how: Any
) -> dict[str, tuple[int, int]]:
    """(start, end) in ns of every operation that left a span."""
    simulator = Simulator(made, no_work, profile or Seats(), replicas=how.pop("replicas", 1))
    return {span.name: (span.start_ns, span.end_ns) for span in simulator.run(simulator.ready(prices), **how).spans()}


def no_work(op: Op, facts: object) -> Work:
    """For simulations that start from prices."""
    raise NotImplementedError
