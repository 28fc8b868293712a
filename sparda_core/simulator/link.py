"""SharedResources: flows through shared resources as SimPy processes see them, each with an event for its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import simpy

from sparda_core.errors import ConfigError
from sparda_core.simulator.fairshare import Demand, demand
from sparda_core.simulator.fluid import NEVER, NS, Flow, Fluid, Rates, ceil_ns

__all__ = ["NS", "Flow", "SharedFlow", "SharedResources", "Wake", "ceil_ns"]


class Wake:
    """At most one wake-up that counts: calls back at the time asked for last.

    SimPy cannot take a wake-up back; so a later one is never armed while an earlier one is due: that one
    looks at the clock, finds itself too early and arms the next. What lies armed is thus strictly
    nested, its number does not grow with the number of changes, and a stale one does no harm.
    """

    __slots__ = ("_armed_ns", "_call", "_env", "due_ns")

    def __init__(self, env: simpy.Environment, call: Callable[[int], None]) -> None:
        self._env, self._call = env, call
        self._armed_ns: list[int] = []
        self.due_ns = NEVER

    @property
    def armed(self) -> int:
        """Wake-ups that lie in the event queue."""
        return len(self._armed_ns)

    def at(self, due_ns: int) -> None:
        """Call back at `due_ns` (now or later) and no more at the time asked for before; NEVER: not at all."""
        self.due_ns = due_ns
        armed = self._armed_ns
        if due_ns == NEVER or (armed and armed[-1] <= due_ns):
            return
        armed.append(due_ns)
        wake = self._env.timeout(due_ns - self._env.now)
        assert wake.callbacks is not None
        wake.callbacks.append(self._fire)

    def _fire(self, _: simpy.Event) -> None:
        now_ns = self._armed_ns.pop()
        if self.due_ns > now_ns:
            self.at(self.due_ns)
        else:
            self.due_ns = NEVER
            self._call(now_ns)


class SharedFlow(Flow):
    """A flow with the event `done`, which fires when its last unit has passed, and its demand as started."""

    __slots__ = ("base", "done", "factor")

    def __init__(self, size: float, kind: int, base: Demand, done: simpy.Event) -> None:
        super().__init__(size, kind)
        self.base, self.done, self.factor = base, done, 1.0


class SharedResources:
    """Resources with fixed capacities (units per second), shared fairly by whatever flows are active.

    On every start, finish and slowing the rates are solved anew (by memory, where this multiset of
    demands was seen before) and one wake-up is armed for the earliest finish.

    observer  called after every change with (now in ns, units per second taken from each resource)
    """

    def __init__(
        self, env: simpy.Environment, capacity: Mapping[str, float],
        observer: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:  # fmt: skip
        self._env, self._observer = env, observer
        self._rates = Rates(capacity)
        self._fluid = Fluid(self._rates)
        self._wake = Wake(env, self._change)
        self._over: list[Flow] = []

    @property
    def armed(self) -> int:
        """Wake-ups that lie in the event queue."""
        return self._wake.armed

    @property
    def served(self) -> dict[str, float]:
        """Units taken from each resource so far."""
        now_ns = int(self._env.now)
        taken = dict.fromkeys(self._rates.capacity, 0.0)
        for flow in (*self._over, *self._fluid.flows):
            moved = flow.moved if flow.end_ns is not None else flow.moved_at(now_ns)
            for name, amount in self._rates.demand(flow.kind).uses:
                taken[name] += moved * amount
        return taken

    def usage(self) -> dict[str, float]:
        """Units per second now taken from each resource."""
        return self._fluid.usage()

    def start(self, size: float, uses: Mapping[str, float], cap: float = math.inf) -> SharedFlow:
        """Begin a flow of `size` units; one of size 0 is done at once."""
        if not (size >= 0 and math.isfinite(size)):
            raise ConfigError(f"flow size={size} must be finite and >= 0")
        base = demand(uses, cap)
        flow = SharedFlow(size, self._rates.kind(base), base, self._env.event())
        now_ns = int(self._env.now)
        if size:
            self._fluid.flows.append(flow)
        else:
            flow.end_ns = now_ns
            flow.done.succeed()
        self._change(now_ns)
        return flow

    def slow(self, factors: Mapping[SharedFlow, float]) -> None:
        """From now on, divide the caps of these flows by their factor (1 = as started)."""
        for flow, factor in factors.items():
            if factor != flow.factor:
                flow.factor = factor
                flow.kind = self._rates.kind(Demand(flow.base.uses, flow.base.cap / factor))
        self._change(int(self._env.now))

    def _change(self, now_ns: int) -> None:
        for flow in self._fluid.finish(now_ns):
            assert isinstance(flow, SharedFlow)
            flow.done.succeed()
            self._over.append(flow)
        self._fluid.solve(now_ns)
        self._wake.at(self._fluid.due_ns)
        if self._observer is not None:
            self._observer(now_ns, self.usage())
