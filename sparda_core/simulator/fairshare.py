"""Bounded max-min fair rates of flows that share several resources, by progressive filling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from sparda_core.errors import ConfigError


@attrs.frozen(order=True)
class Demand:
    """What one unit of a flow takes from each resource, and how many units a second it can use at most.

    uses  (resource, units of the resource per unit of the flow), sorted by name, amounts > 0
    cap   units per second; infinite where only resources bound the flow
    """

    uses: tuple[tuple[str, float], ...]
    cap: float = math.inf

    def __attrs_post_init__(self) -> None:
        if not self.cap > 0:
            raise ConfigError(f"flow cap={self.cap} must be > 0 units/s: a flow without a rate never ends")
        if any(not (amount > 0 and math.isfinite(amount)) for _, amount in self.uses):
            raise ConfigError(f"flow uses {dict(self.uses)}; every amount must be finite and > 0")
        if not self.uses and math.isinf(self.cap):
            raise ConfigError("a flow needs a resource or a finite cap; this one has neither")


def demand(uses: Mapping[str, float], cap: float = math.inf) -> Demand:
    """A Demand from a mapping; resources of which nothing is taken are left out."""
    return Demand(tuple(sorted((name, amount) for name, amount in uses.items() if amount)), cap)


def fair_rates(demands: Sequence[Demand], capacity: Mapping[str, float]) -> tuple[float, ...]:
    """Rate of each flow, in units per second, in the order given.

    All rates rise together; a flow stops rising at its cap, or when a resource it uses is full
    (bounded max-min fairness). No resource is exceeded, and no rate could rise without lowering a
    smaller or equal one. Equal demands get equal rates, whatever their order.
    """
    rates = [0.0] * len(demands)
    rising = set(range(len(demands)))
    left = dict(capacity)
    while rising:
        pull: dict[str, float] = {}
        for i in sorted(rising, key=lambda i: demands[i]):
            for name, amount in demands[i].uses:
                pull[name] = pull.get(name, 0.0) + amount
        full_at = {name: max(0.0, left[name]) / total for name, total in pull.items()}
        level = min([*full_at.values(), *(demands[i].cap for i in rising)])
        full = {name for name, at in full_at.items() if at <= level}
        stopped = {i for i in rising if demands[i].cap <= level or any(name in full for name, _ in demands[i].uses)}
        for i in stopped:
            rates[i] = level
        for i in sorted(stopped, key=lambda i: demands[i]):
            for name, amount in demands[i].uses:
                left[name] -= level * amount
        rising -= stopped
    return tuple(rates)
