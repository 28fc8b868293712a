"""Machine: a profile made ready for the engine. What a price needs again and again is worked out once.

Everything here depends on the profile and on prices alone, never on a step: one machine serves all steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from sparda_core.errors import ProfileError
from sparda_core.simulator.fairshare import Demand, demand
from sparda_core.simulator.fluid import Rates, ceil_ns
from sparda_core.simulator.profile import LINK, Price, Profile
from sparda_core.simulator.sms import Seat, SmPool, waves_alone

if TYPE_CHECKING:
    from sparda_core.simulator.layout import Layout
    from sparda_core.simulator.programs import Program, Programs
    from sparda_core.simulator.windows import Windows

Kinds = tuple[int, ...]
#: What runs now, one number an operation in the order they started: its part (the first alike), and as lowest
#: bits which of its flows are live. Where a copy kernel's rate depends on it: last, minus one minus the replicas whose
#: compute lane is at work, as bits.
Situation = tuple[int, ...]
#: Rates of each operation's live flows.
Solution = tuple[tuple[float, ...], ...]
#: Bits of a situation's number that say which flows are live.
FLOW_BITS = 8
#: Where blocks miss at random no two operations are interrupted alike: the memory must end somewhere.
_MOST_CARRIED = _MOST_COSTS = 10_000
_ALL_FLOWS = (1 << FLOW_BITS) - 1
#: Fields that tell two prices apart, besides their charges.
_OTHERS = tuple(field.name for field in attrs.fields(Price) if field.name != "charges")


class Cost:
    """A price as the engine uses it: whole nanoseconds, and flows as (size, demand).

    number  equal for equal prices of one replica
    places  a copy kernel whose thread blocks are placed one by one; other grids are of compute kernels
    skips   nothing to do, not even a launch: leaves no span
    """

    __slots__ = (
        "caps",
        "demands",
        "gap",
        "grid",
        "kernels",
        "labels",
        "late_caps",
        "latency_ns",
        "launch_ns",
        "manner",
        "mask",
        "number",
        "part",
        "places",
        "price",
        "queue",
        "replica",
        "sizes",
        "skips",
        "wake_ns",
        "waves_alone",
    )  # fmt: skip

    def __init__(self, price: Price, number: int, replica: int, demands: tuple[Demand, ...], *, slots: bool) -> None:
        self.price, self.number, self.replica, self.demands = price, number, replica, demands
        self.launch_ns, self.latency_ns = ceil_ns(price.launch_s), ceil_ns(price.latency_s)
        self.wake_ns = None if price.wake_s is None else ceil_ns(price.wake_s)
        # What the time from a wait's end to the start depends on.
        self.gap: Hashable = self.launch_ns if self.wake_ns is None else (self.launch_ns, self.wake_ns)
        self.sizes = tuple(charge.size for charge in price.charges)
        self.labels = tuple(charge.label for charge in price.charges)
        self.skips = price.nothing and price.copies
        self.grid = price.grid if slots else None
        self.places = self.grid is not None and self.grid.whole_sm
        self.kernels = price.kernels
        self.caps = price.copy_caps if self.places else ()
        self.late_caps = price.late_caps if self.places else ()
        self.queue = price.queue
        self.waves_alone = 0
        # Bits of the flows that move anything.
        self.mask = sum(1 << bit for bit, size in enumerate(self.sizes) if size)
        # Equal for costs that differ at most in how much their flows move.
        self.manner: tuple[object, ...] = ()
        # Number of this cost alone (Machine.part).
        self.part = -1

    def launches_in_ns(self, waited_ns: int) -> int:
        """From the end of what it waits for to its start, after a wait of `waited_ns` for another lane."""
        if self.wake_ns is None or not waited_ns:
            return self.launch_ns
        return max(self.wake_ns, self.launch_ns - waited_ns)


@attrs.frozen(kw_only=True)
class Bill:
    """Costs of a plan's operations, of each replica, on the machine that they were worked out for.

    keys  numbers of the first replica's costs, then what else the launch of each depends on but its own start
    caps  whether a copy kernel's rate depends on whether compute is at work
    host  whether issuing takes time, or the host must wait
    """

    machine: Machine
    costs: Sequence[Sequence[Cost]]
    caps: bool
    host: bool
    keys: Sequence[Hashable]


class Machine:
    """A profile's shared resources and SMs, `replicas` times, and the memory of what was worked out on them.

    Every replica has resources and SMs of its own, except for those that the profile shares.
    split  instead of more replicas: one, with 1/split of each shared resource (what one of `split`
           replicas in lockstep gets)
    Raises ProfileError for a shared resource that the profile does not have.
    """

    def __init__(self, profile: Profile, replicas: int = 1, split: int = 1) -> None:
        self.profile, self.replicas = profile, replicas
        own = profile.capacity()
        self.shared = profile.shared
        if unknown := sorted(self.shared - own.keys()):
            raise ProfileError(f"profile {profile.name!r} shares {unknown}; its resources: {sorted(own)}")
        capacity = {name: value / split for name, value in own.items() if name in self.shared}
        for replica in range(replicas):
            capacity |= {self.named(name, replica): own[name] for name in own if name not in self.shared}
        self.rates = Rates(capacity)
        self.pools = [SmPool(profile.sms) if profile.sms else None for _ in range(replicas)]
        #: By what runs beside them; every equal one is the same object.
        self.programs: dict[Situation, Programs] = {}
        self._carried: dict[tuple[Program, Situation, int, int], Program | None] = {}
        self._distinct: dict[tuple[object, ...], Program] = {}
        #: By who holds which SMs, then by cost: the part that would start now; -1 where it finds no SM.
        self.starts: dict[Hashable, dict[int, int]] = {}
        self._numbers: dict[tuple[object, ...], Cost] = {}
        self._costs: dict[tuple[int, int], Cost] = {}
        self._slowdowns: dict[tuple[int, ...], float] = {}
        self._parts: dict[tuple[int, int, float], int] = {}
        self._by_part: list[tuple[Cost, int, float]] = []
        #: Of each part: the first one that differs at most in how much its flows move, which no rate depends on.
        self.alike: list[int] = []
        self._first_alike: dict[tuple[object, ...], int] = {}
        self._windows: tuple[Layout, Windows] | None = None
        #: By what runs now: see `solve`.
        self.solved: dict[Situation, Solution] = {}
        self._capped: dict[tuple[int, float], Kinds] = {}
        self._placed: dict[tuple[int, int, bool, float], Kinds] = {}

    def named(self, name: str, replica: int) -> str:
        """What a replica's resource or counter is called."""
        return name if self.replicas == 1 or name in self.shared else f"{name}@{replica}"

    def cost(self, price: Price, replica: int = 0) -> Cost:
        """The price made ready. Equal prices, and the same one again, give the same object."""
        known = self._costs.get((id(price), replica))
        if known is None or known.price is not price:
            known = self._cost(price, replica)
            # The cost may hold an equal price: it must be this one for its id to stay its own.
            if known.price is price:
                self._costs[id(price), replica] = known
        return known

    def _cost(self, price: Price, replica: int) -> Cost:
        uses = [self._uses(charge.uses, replica) for charge in price.charges]
        demands = tuple(demand(use, charge.cap) for use, charge in zip(uses, price.charges, strict=True))
        charges = tuple((charge.label, charge.size) for charge in price.charges)
        others = tuple(getattr(price, name) for name in _OTHERS)
        key = (replica, demands, charges, *others)
        cost = self._numbers.get(key)
        if cost is None:
            cost = Cost(price, len(self._numbers), replica, demands, slots=self.profile.sms > 0)
            cost.manner = (replica, demands, *[(label, size > 0) for label, size in charges], *others)
            self._check(cost)
            self._numbers[key] = cost
            cost.part = self.part(cost)
        return cost

    def _uses(self, uses: Mapping[str, float], replica: int) -> Mapping[str, float]:
        return uses if self.replicas == 1 else {self.named(name, replica): uses[name] for name in uses}

    def _check(self, cost: Cost) -> None:
        grid = cost.grid
        if len(cost.sizes) > FLOW_BITS:
            raise ProfileError(f"a price has {len(cost.sizes)} charges; most {FLOW_BITS}")
        if grid is None:
            return
        if grid.ctas < 1 or grid.cluster < 1 or grid.per_sm < 1 or cost.kernels < 1:
            raise ProfileError(f"{grid} in {cost.kernels} kernels: every count must be >= 1")
        cost.waves_alone = waves_alone(grid, self.profile.sms)
        if not cost.waves_alone:
            raise ProfileError(f"{grid} never finds a place: profile {self.profile.name!r} has {self.profile.sms} SMs")
        for name, caps in (("copy_caps", cost.caps), ("late_caps", cost.late_caps)):
            if caps and len(caps) < grid.ctas:
                raise ProfileError(f"{name} has {len(caps)} entries for a copy kernel of {grid.ctas} thread blocks")
        if cost.late_caps and not cost.caps:
            raise ProfileError("late_caps without copy_caps: a copy kernel has a rate alone, too")

    def windows(self, layout: Layout) -> Windows:
        """What is remembered of this layout's steps; of the last layout asked for."""
        if self._windows is None or self._windows[0] is not layout:
            from sparda_core.simulator.windows import Windows

            self._windows = layout, Windows(layout)
        return self._windows[1]

    def bill(self, prices: Sequence[Price]) -> Bill:
        """The prices of a plan's operations, made ready for every replica."""
        costs = [[self.cost(price, replica) for price in prices] for replica in range(self.replicas)]
        distinct = {cost.number: cost for own in costs for cost in own}.values()
        return Bill(
            machine=self, costs=costs, caps=any(cost.caps for cost in distinct),
            host=any(c.price.issue_s or c.price.then_s or c.price.before_s or c.price.host_waits for c in distinct),
            keys=[*[cost.number for cost in costs[0]], *[cost.gap for cost in costs[0]]],
        )  # fmt: skip

    @property
    def crowded(self) -> bool:
        """Whether it remembers so much that a fresh one is due: steps that all differ would fill any memory."""
        return len(self._numbers) > _MOST_COSTS

    def part(self, cost: Cost, placed: int = 0, lag: float = 1.0) -> int:
        """Number of a running operation: its cost, its placed thread blocks, its lag for want of SMs (>= 1).

        placed  less than 0: so many of a copy whose first one was placed beside a compute kernel
        """
        key = cost.number, placed, lag
        number = self._parts.get(key)
        if number is None:
            number = self._parts[key] = len(self._by_part)
            self._by_part.append((cost, placed, lag))
            self.alike.append(self._first_alike.setdefault((*cost.manner, placed, lag), number))
        return number

    def solve(self, situation: Situation) -> Solution:
        """Slowdowns and rates of what runs now, by memory."""
        solution = self.solved.get(situation)
        if solution is None:
            solution = self.solved[situation] = self._solve(situation) if situation else ()
        return solution

    def _solve(self, situation: Situation) -> Solution:
        work = -1 - situation[-1] if situation[-1] < 0 else 0
        running = [(*self._by_part[number >> FLOW_BITS], number & _ALL_FLOWS) for number in situation if number >= 0]
        live: list[list[int]] = []
        for at, (cost, placed, lag, mask) in enumerate(running):
            others = tuple(o[0] for number, o in enumerate(running) if number != at and o[0].replica == cost.replica)
            # Each adds its share of the time alone: a longer first wave does not lengthen the second.
            factor = self.slowdown(cost, others) + lag - 1
            kinds = self.kinds(cost, factor, placed, beside_compute=bool(work >> cost.replica & 1))
            live.append([kind for bit, kind in enumerate(kinds) if mask >> bit & 1])
        rates = self.rates.of(tuple(sorted(kind for kinds in live for kind in kinds)))
        return tuple(tuple(rates[kind] for kind in kinds) for kinds in live)

    def number(self, part: int, mask: int) -> int:
        """A part with some of its flows live, as a situation holds it."""
        return self.alike[part] << FLOW_BITS | mask

    def start(self, cost: Cost) -> int:
        """The part that a compute operation would be if it started now; -1 where it finds no SM."""
        if cost.grid is None:
            return cost.part
        pool = self.pools[cost.replica]
        assert pool is not None
        seat = pool.seat(cost.grid)
        return self.part(cost, lag=self.wave_factor(cost, seat)) if seat.waves else -1

    def program(self, beside: Situation, part: int) -> Program | None:
        """Program of a part beside what else runs, by memory; equal programs of one part are one object."""
        programs = self.programs.get(beside)
        if programs is None:
            programs = self.programs[beside] = {}
        if part not in programs:
            from sparda_core.simulator.programs import work_out

            made = work_out(self, beside, part, self._by_part[part][0])
            programs[part] = made and self._distinct.setdefault((part, *made.content), made)
        return programs[part]

    def carried_on(self, beside: Situation, part: int, program: Program, since_ns: int) -> Program | None:
        """Program of a part after `since_ns` by another one, from when this runs beside it; by memory."""
        key = program, beside, part, since_ns
        if key not in self._carried:
            from sparda_core.simulator.programs import carry_on

            if len(self._carried) >= _MOST_CARRIED:
                self._carried.clear()
            self._carried[key] = carry_on(self, beside, part, self._by_part[part][0], program, since_ns)
        return self._carried[key]

    def slowdown(self, mine: Cost, others: tuple[Cost, ...]) -> float:
        """What the profile says of `mine` beside `others`; 1 beside nothing."""
        if not others:
            return 1.0
        # In an order of their own: who started first makes no difference.
        others = tuple(sorted(others, key=lambda other: other.number))
        key = (mine.number, *[other.number for other in others])
        factor = self._slowdowns.get(key)
        if factor is None:
            factor = self.profile.slowdown(mine.price, [other.price for other in others])
            self._slowdowns[key] = factor
        return factor

    def wave_factor(self, cost: Cost, seat: Seat) -> float:
        """How much longer one kernel takes on the SMs that it got than on an empty device, >= 1."""
        return 1 + (seat.waves - cost.waves_alone) * cost.price.wave_share

    def kinds(self, cost: Cost, factor: float, placed: int, *, beside_compute: bool) -> Kinds:
        """Kinds of its flows, slowed by `factor`, with `placed` thread blocks of a copy kernel on SMs.

        A kernel that takes longer for want of SMs leaves no more FLOPs and device memory to others: its bytes come
        as fast as ever, and then it waits. What it moves over the link takes of that what its bytes take.
        """
        if not cost.caps:
            kinds = self._capped.get((cost.number, factor))
            if kinds is None:
                kinds = tuple(self.rates.kind(_slower(cost, bit, factor)) for bit in range(len(cost.demands)))
                self._capped[cost.number, factor] = kinds
            return kinds
        at = (cost.number, placed, beside_compute, factor)
        kinds = self._placed.get(at)
        if kinds is None:
            cap = cost.caps[abs(placed) - 1][beside_compute]
            if placed < 0 and beside_compute:
                cap = cost.late_caps[-placed - 1]
            kinds = self._placed[at] = tuple(self.rates.kind(Demand(d.uses, cap / factor)) for d in cost.demands)
        return kinds


def _slower(cost: Cost, bit: int, factor: float) -> Demand:
    own = cost.demands[bit]
    by = factor if cost.grid is not None and cost.labels[bit] != LINK else 1.0
    return Demand(tuple((name, amount * by) for name, amount in own.uses), own.cap / factor)
