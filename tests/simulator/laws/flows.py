"""Flows that share resources, run on the engine: each on a lane of its own, from a time of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import attrs

from sparda_core.simulator.engine import Engine
from sparda_core.simulator.layout import Layout
from sparda_core.simulator.machine import Bill, Machine
from sparda_core.simulator.profile import Charge, Price
from tests.simulator.laws import machine

#: Units a second of the resources below: one a nanosecond, so that a size is its time alone.
UNIT = 1e9
#: More than any flow can take: a resource of its own, in which a flow's rate can be read.
ENDLESS = 1e30


@attrs.frozen
class Job:
    """A flow that starts at a time; `uses` and `cap` as a Charge has them."""

    start_ns: int
    size: float
    uses: Mapping[str, float] = attrs.field(factory=lambda: {"link": 1.0})
    cap: float = math.inf


@attrs.frozen
class Load:
    """Jobs and the resources that they share."""

    jobs: tuple[Job, ...]
    capacity: Mapping[str, float] = attrs.field(factory=lambda: {"link": UNIT})


@attrs.frozen
class Played:
    """ends_ns by job; log holds (ns, units per second by resource) at every instant."""

    ends_ns: tuple[int, ...]
    log: tuple[tuple[int, Mapping[str, float]], ...]

    def rate(self, job: int, usage: Mapping[str, float]) -> float:
        return usage[f"own{job}"]

    def stretches(self) -> list[tuple[int, Mapping[str, float]]]:
        """(length in ns, usage) between instants."""
        return [(later[0] - now[0], now[1]) for now, later in itertools.pairwise(self.log)]

    def served(self, name: str) -> float:
        """Units that a resource gave."""
        return sum(length * usage[name] for length, usage in self.stretches()) / 1e9


def play(load: Load, *, watched: bool = False, shift_ns: int = 0) -> Played:
    """Run the jobs on the engine, each on a lane of its own; `watched` gives each a resource, so that its rate is seen.

    A job is a copy whose launch takes until its start.
    """
    own = {f"own{i}": ENDLESS for i in range(len(load.jobs))} if watched else {}
    jobs = range(len(load.jobs))
    resources = Machine(machine.Machine(prices={}, rates={**load.capacity, **own}))
    costs = []
    for i, job in enumerate(load.jobs):
        uses = {**job.uses, **({f"own{i}": 1.0} if watched else {})}
        start_ns = job.start_ns + shift_ns
        flow = Charge(label="flow", size=job.size, uses=uses, cap=job.cap)
        cost = resources.cost(Price(launch_s=start_ns / 1e9, charges=(flow,), copies=True))
        # Seconds in floats do not hold every nanosecond of a late start.
        cost.launch_ns = start_ns
        costs.append(cost)
    nobody = ((),) * len(jobs)
    layout = Layout(
        lanes=tuple((i,) for i in jobs), compute=False, waits=nobody, order=tuple(jobs), listed=nobody,
        watched=(False,) * len(jobs),
    )  # fmt: skip
    log: list[tuple[int, Mapping[str, float]]] = []
    bill = Bill(machine=resources, costs=[costs], caps=False, host=False, keys=())
    engine = Engine(layout, bill, resources, lambda now_ns, usage: log.append((now_ns, dict(usage))))
    engine.run()
    return Played(tuple(engine.ledgers[0].ends), tuple(log))


def ends(load: Load, *, shift_ns: int = 0) -> tuple[int, ...]:
    return play(load, shift_ns=shift_ns).ends_ns


def on_link(*jobs: tuple[int, float]) -> Load:
    return Load(tuple(Job(start, size) for start, size in jobs))
