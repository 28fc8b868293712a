"""Flows through shared resources, exact: each keeps an anchor, and moves it only when its rate changes.

What is left of a flow is a float, the clock counts integer nanoseconds, and a completion is rounded up,
so that no resource ever gives more than it has. A flow's finish is computed from where its rate last
changed; events in between that leave its rate alone leave its finish alone too, to the last bit. That
is why running over such events in one go changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparda_core.errors import ConfigError
from sparda_core.simulator.fairshare import Demand, fair_rates

NS = 1_000_000_000
#: Later than anything: what has no time yet.
NEVER = 1 << 62
# A completion this close above a whole nanosecond is on it: the excess is rounding, not work.
_ROUNDING_NS = 1e-6


def ceil_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded up."""
    return math.ceil(seconds * NS - _ROUNDING_NS)


class Flow:
    """One flow under way: `moved` units had passed at `anchor_ns`, `rate` units a second since then.

    kind    which of its operation's flows it is; nothing here looks at it
    due_ns  when its last unit passes if its rate stays as it is; NEVER before it has a rate
    end_ns  when its last unit passed
    """

    __slots__ = ("anchor_ns", "due_ns", "end_ns", "kind", "moved", "rate", "size")

    def __init__(self, size: float, kind: int) -> None:
        self.size, self.kind = size, kind
        self.moved = self.rate = 0.0
        self.anchor_ns, self.due_ns = 0, NEVER
        self.end_ns: int | None = None

    def moved_at(self, now_ns: int) -> float:
        """Units that have passed by `now_ns`, which lies between the anchor and the finish."""
        return self.moved + self.rate * (now_ns - self.anchor_ns) / NS

    def reach_ns(self, size: float) -> int:
        """When `size` units have passed if the rate stays as it is; the anchor where they had by then."""
        left_ns = ceil_ns((size - self.moved) / self.rate)
        return self.anchor_ns + left_ns if left_ns > 0 else self.anchor_ns

    def change_rate(self, rate: float, now_ns: int) -> None:
        """Another rate from now on."""
        # As moved_at says; written out, for this is called at every event.
        self.moved += self.rate * (now_ns - self.anchor_ns) / NS
        self.anchor_ns, self.rate = now_ns, rate
        self.due_ns = self.reach_ns(self.size)


class Rates:
    """Fair rates by memory: one solution for each multiset of demands ever met on these capacities.

    Raises ConfigError for a capacity that is not above 0.
    """

    def __init__(self, capacity: Mapping[str, float]) -> None:
        for name, value in capacity.items():
            if not (value > 0 and not math.isnan(value)):
                raise ConfigError(f"capacity of {name!r} is {value}; must be > 0 units/s")
        self.capacity = dict(capacity)
        # Equal demands have one number, so that a multiset of them is a short tuple of numbers.
        self._kinds: dict[Demand, int] = {}
        self._demands: list[Demand] = []
        self._solved: dict[tuple[int, ...], dict[int, float]] = {}

    def kind(self, wanted: Demand) -> int:
        """Number of a demand. Raises ConfigError for a resource that does not exist."""
        number = self._kinds.get(wanted)
        if number is None:
            unknown = sorted({name for name, _ in wanted.uses} - set(self.capacity))
            if unknown:
                raise ConfigError(f"flow uses {unknown}; known resources: {sorted(self.capacity)}")
            number = self._kinds[wanted] = len(self._demands)
            self._demands.append(wanted)
        return number

    def of(self, kinds: tuple[int, ...]) -> dict[int, float]:
        """Rate of each kind of a sorted multiset of kinds, units per second."""
        rates = self._solved.get(kinds)
        if rates is None:
            solved = fair_rates([self._demands[kind] for kind in kinds], self.capacity)
            rates = self._solved[kinds] = dict(zip(kinds, solved, strict=True))
        return rates
