"""Meters: resources that never run short and take the bytes themselves, beside those that take their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import attrs

from sparda_core.plan import Op, StepPlan
from sparda_core.simulator.profile import HBM, LINK, Charge, Price, Profile, moves
from sparda_core.work import Work

#: Meter -> the resource whose bytes it counts.
METERS = {"~hbm": "hbm", "~h2d": "h2d", "~d2h": "d2h"}


def metered(profile: Profile) -> Profile:
    """The same machine with meters: an observer of the engine finds the bytes per second under METERS.

    What a flow takes of a resource is a price and not always its bytes: a kernel at its ceiling takes
    all of device memory, and a transfer one way some of the other. A meter is as large as one likes,
    hence nothing waits for it.
    """
    return cast("Profile", _Metered(profile))


def bytes_of(taken: Mapping[str, float]) -> dict[str, float]:
    """What an observer of a metered machine was told, with bytes in place of what they cost."""
    told = {name: value for name, value in taken.items() if name not in METERS}
    return told | {resource: taken[meter] for meter, resource in METERS.items()}


class _Metered:
    """Everything but prices and capacities is the profile's own."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._profile, name)

    def capacity(self) -> dict[str, float]:
        return {**self._profile.capacity(), **dict.fromkeys(METERS, math.inf)}

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        price = self._profile.price(op, work, plan=plan, tokens=tokens)
        device = sum(charge.size for charge in price.charges if charge.label == HBM)
        link = work.h2d_bytes + work.d2h_bytes
        up = bool(work.h2d_bytes)  # where an operation moves both ways, up comes first
        charges = []
        for charge in price.charges:
            meters: dict[str, float] = {}
            if charge.label == HBM:
                meters = {"~hbm": work.hbm_bytes / device}
            elif charge.label == LINK:
                meters = {"~h2d" if up else "~d2h": 1.0, "~hbm": _through(op, work, device) / link}
                up = False
            charges.append(_with(charge, meters))
        return attrs.evolve(price, charges=tuple(charges))


def _through(op: Op, work: Work, device: float) -> float:
    """Bytes of device memory that a transfer reads or writes as it goes; a flow of their own counts them elsewhere."""
    return work.hbm_bytes if moves(op) and not device else 0.0


def _with(charge: Charge, meters: Mapping[str, float]) -> Charge:
    return attrs.evolve(charge, uses={**charge.uses, **meters})
