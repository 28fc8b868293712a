"""The host: issues operations one after another, and waits where an operation needs it to."""

from __future__ import annotations

from collections.abc import Sequence

from sparda_core.simulator.fluid import NEVER, ceil_ns
from sparda_core.simulator.machine import Cost


class Host:
    """When the host has issued each operation (ns); NEVER where that is not known yet.

    Each costs its issue time, what the host does before and after it. Where an operation makes the host wait,
    the host goes on once everything in its `after` has ended; its and all later issue times follow from there.
    `order` is that in which it issues them (`Layout.order`).
    """

    __slots__ = ("_after", "_base_ns", "_costs", "_ended", "_next", "_order", "_spent_s", "issued_ns")

    def __init__(
        self, costs: Sequence[Cost], order: Sequence[int], after: Sequence[Sequence[int]], ended: Sequence[int]
    ) -> None:
        self._costs, self._order, self._after, self._ended = costs, order, after, ended
        self._next = self._base_ns = 0
        # Seconds since the base are summed up before they are rounded: rounding each would add up.
        self._spent_s = 0.0
        self.issued_ns = [NEVER] * len(costs)
        self.go_on()

    @property
    def waits(self) -> bool:
        """Whether it waits for something to end."""
        return self._next < len(self._costs)

    def go_on(self) -> bool:
        """Issue until something must be waited for; True where anything was issued."""
        first = self._next
        while self._next < len(self._costs):
            op = self._order[self._next]
            price = self._costs[op].price
            if price.host_waits:
                ends = [self._ended[wait] for wait in self._after[op]]
                if any(end < 0 for end in ends):
                    break
                self._spent_s += price.before_s
                if ends and max(ends) > self._base_ns + ceil_ns(self._spent_s):
                    self._base_ns, self._spent_s = max(ends), 0.0
            self._spent_s += price.issue_s
            self.issued_ns[op] = self._base_ns + ceil_ns(self._spent_s)
            self._spent_s += price.then_s
            self._next += 1
        return self._next > first
