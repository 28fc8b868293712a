"""SharedResources: flows through shared resources in SimPy's virtual time, exact at every start and finish.

The clock counts integer nanoseconds. What is left of a flow is a float; a completion is rounded up to
the next nanosecond, so that no resource ever gives more than it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import simpy

from sparda_core.errors import ConfigError
from sparda_core.simulator.fairshare import Demand, demand, fair_rates

NS = 1_000_000_000
# A completion this close above a whole nanosecond is on it: the excess is rounding, not work.
_ROUNDING_NS = 1e-6


def ceil_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded up."""
    return math.ceil(seconds * NS - _ROUNDING_NS)


class Flow:
    """One flow under way. `done` fires when its last unit has passed; `end_ns` is set then."""

    __slots__ = ("base", "demand", "done", "end_ns", "factor", "kind", "moved", "rate", "size", "start_ns")

    def __init__(self, *, size: float, base: Demand, kind: int, done: simpy.Event, start_ns: int) -> None:
        self.size, self.base, self.demand, self.kind, self.done = size, base, base, kind, done
        self.start_ns, self.factor = start_ns, 1.0
        self.moved = self.rate = 0.0
        self.end_ns: int | None = None

    def finish_ns(self, now_ns: int) -> int:
        """When the last unit passes if the rate stays as it is."""
        return now_ns + ceil_ns((self.size - self.moved) / self.rate)


class SharedResources:
    """Resources with fixed capacities (units per second), shared fairly by whatever flows are active.

    On every change the past is integrated, the rates are solved anew (by memory, where this multiset
    of demands was seen before) and one wake-up is armed for the earliest finish. SimPy cannot take a
    wake-up back; so a later one is never armed while an earlier one is due: that one looks at the
    clock, finds nothing finished and arms the next. What lies armed is thus strictly nested, and a
    stale wake-up can do no harm.

    observer  called after every change with (now in ns, units per second taken from each resource)
    """

    def __init__(
        self, env: simpy.Environment, capacity: Mapping[str, float],
        observer: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:  # fmt: skip
        for name, value in capacity.items():
            if not (value > 0 and not math.isnan(value)):
                raise ConfigError(f"capacity of {name!r} is {value}; must be > 0 units/s")
        self._env, self._capacity, self._observer = env, dict(capacity), observer
        self._flows: list[Flow] = []
        # Equal demands have one number, so that a multiset of them is a short tuple of numbers.
        self._kinds: dict[Demand, int] = {}
        self._seen: dict[tuple[int, ...], dict[int, float]] = {}
        self._last_ns = int(env.now)
        self._armed_ns: list[int] = []
        self.served = dict.fromkeys(capacity, 0.0)

    @property
    def armed(self) -> int:
        """Wake-ups that lie in the event queue."""
        return len(self._armed_ns)

    def usage(self) -> dict[str, float]:
        """Units per second now taken from each resource."""
        taken = dict.fromkeys(self._capacity, 0.0)
        for flow in self._flows:
            for name, amount in flow.demand.uses:
                taken[name] += flow.rate * amount
        return taken

    def start(self, size: float, uses: Mapping[str, float], cap: float = math.inf) -> Flow:
        """Begin a flow of `size` units; one of size 0 is done at once."""
        if not (size >= 0 and math.isfinite(size)):
            raise ConfigError(f"flow size={size} must be finite and >= 0")
        unknown = set(uses) - set(self._capacity)
        if unknown:
            raise ConfigError(f"flow uses {sorted(unknown)}; known resources: {sorted(self._capacity)}")
        now = int(self._env.now)
        base = demand(uses, cap)
        flow = Flow(size=size, base=base, kind=self._kind(base), done=self._env.event(), start_ns=now)
        self._advance()
        if size:
            self._flows.append(flow)
        else:
            flow.end_ns = now
            flow.done.succeed()
        self._solve()
        return flow

    def slow(self, factors: Mapping[Flow, float]) -> None:
        """From now on, divide the caps of these flows by their factor (1 = as started)."""
        finished = self._advance()
        changed = {flow: factor for flow, factor in factors.items() if factor != flow.factor}
        for flow, factor in changed.items():
            flow.factor = factor
            flow.demand = Demand(flow.base.uses, flow.base.cap / factor)
            flow.kind = self._kind(flow.demand)
        if finished or changed:
            self._solve()

    def _kind(self, wanted: Demand) -> int:
        return self._kinds.setdefault(wanted, len(self._kinds))

    def _advance(self) -> bool:
        """Integrate what has passed since the last change; True where a flow finished."""
        now = int(self._env.now)
        if now == self._last_ns:
            return False
        active = []
        for flow in self._flows:
            over = flow.finish_ns(self._last_ns) <= now
            moved = flow.size - flow.moved if over else flow.rate * (now - self._last_ns) / NS
            flow.moved = flow.size if over else flow.moved + moved
            for name, amount in flow.demand.uses:
                self.served[name] += moved * amount
            if over:
                flow.end_ns = now
                flow.done.succeed()
            else:
                active.append(flow)
        finished = len(active) < len(self._flows)
        self._flows, self._last_ns = active, now
        return finished

    def _solve(self) -> None:
        if self._flows:
            key = tuple(sorted(flow.kind for flow in self._flows))
            rates = self._seen.get(key)
            if rates is None:
                solved = fair_rates([flow.demand for flow in self._flows], self._capacity)
                rates = self._seen[key] = dict(zip((flow.kind for flow in self._flows), solved, strict=True))
            for flow in self._flows:
                flow.rate = rates[flow.kind]
            self._arm(min(flow.finish_ns(self._last_ns) for flow in self._flows))
        if self._observer is not None:
            self._observer(self._last_ns, self.usage())

    def _arm(self, due_ns: int) -> None:
        if self._armed_ns and self._armed_ns[-1] <= due_ns:
            return
        self._armed_ns.append(due_ns)
        wake = self._env.timeout(due_ns - int(self._env.now))
        assert wake.callbacks is not None
        wake.callbacks.append(self._wake)

    def _wake(self, _: simpy.Event) -> None:
        due_ns = self._armed_ns.pop()
        assert due_ns == self._env.now, f"wake-up of {due_ns} ns fired at {self._env.now} ns"
        if not self._flows:
            return
        next_ns = min(flow.finish_ns(self._last_ns) for flow in self._flows)
        if next_ns > due_ns:
            self._arm(next_ns)
        elif self._advance():
            self._solve()
