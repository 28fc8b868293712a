"""A CPU: costs per kind fitted from measured operations, since its lanes share cores and caches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs

from sparda_core.errors import ProfileError
from sparda_core.plan import Op, StepPlan
from sparda_core.simulator.profile import LINK, RUNTIME_KINDS, TIME, Charge, Price, Profile, moves
from sparda_core.simulator.quantity import Basis, Quantity
from sparda_core.work import Work

#: What the time of a kind may grow with.
DRIVERS = ("hbm_bytes", "flops", "h2d_bytes", "d2h_bytes")


def cost_key(phase: str, selector: str, kind: str) -> str:
    """Key of a kind's cost: `decode/mlp`, or `decode/forecast:score` for a selector's own kind."""
    return f"{phase}/{kind}" if kind in RUNTIME_KINDS else f"{phase}/{selector}:{kind}"


def _checked(low: float) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= low):
            raise ProfileError(f"{attribute.name}={value!r} must be a finite number >= {low:g}")

    return check


@attrs.frozen(kw_only=True)
class KindCost:
    """Time of one kind alone: fixed_s + per_unit_s x driver; `slowdown` times that beside a busy other lane.

    driver   which number of its Work the time grows with
    samples  how many operations were measured, `error` their median relative misfit
    """

    fixed_s: float = attrs.field(validator=_checked(0))
    driver: str = attrs.field(validator=attrs.validators.instance_of(str))
    per_unit_s: float = attrs.field(validator=_checked(0))
    slowdown: float = attrs.field(default=1.0, validator=_checked(1))
    samples: int = attrs.field(default=0, validator=_checked(0))
    error: float = attrs.field(default=0.0, validator=_checked(0))

    @driver.validator
    def _known(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in DRIVERS:
            raise ProfileError(f"driver={value!r} is unknown; known: {', '.join(DRIVERS)}")

    def seconds(self, work: Work) -> float:
        """Time alone."""
        return self.fixed_s + self.per_unit_s * float(getattr(work, self.driver))


@attrs.frozen(kw_only=True)
class CpuProfile(Profile):
    """A CPU whose fast tier is a bounded pool, whose slow tier is its own memory, and whose copy lane is a thread.

    ram_bytes         memory for everything
    dispatch_s        from one operation to the next on the compute lane
    wake_s            from the end of a transfer to the operation that waited for it
    copy_start_s      from the operation that makes a transfer known to the transfer's start
    between_steps_s   from one step to the next
    costs             by `cost_key`
    machine           what it was measured on, in words
    link_bytes_per_s  emulated link that the copy lane is held to; None: as fast as it copies
    """

    device: ClassVar[str] = "cpu"
    engines: ClassVar[tuple[str, ...]] = ("thread",)

    ram_bytes: Quantity = attrs.field(metadata={"unit": "B"})
    dispatch_s: Quantity = attrs.field(metadata={"unit": "s"})
    wake_s: Quantity = attrs.field(metadata={"unit": "s"})
    copy_start_s: Quantity = attrs.field(metadata={"unit": "s"})
    between_steps_s: Quantity = attrs.field(metadata={"unit": "s"})
    costs: dict[str, KindCost] = attrs.field(metadata={"table_of": KindCost})
    machine: dict[str, str] = attrs.field(factory=dict)
    link_bytes_per_s: float | None = attrs.field(default=None, metadata={"setting": True})

    @costs.validator
    def _some(self, attribute: attrs.Attribute[Any], value: Mapping[str, KindCost]) -> None:
        if not value:
            raise ProfileError("costs is empty; a CPU profile is made by `sparda calibrate --device cpu`")

    def capacity(self) -> dict[str, float]:
        """The emulated link, where there is one."""
        return {} if self.link_bytes_per_s is None else {"h2d": self.link_bytes_per_s}

    def price(self, op: Op, work: Work, *, plan: StepPlan, tokens: int) -> Price:
        """A compute operation takes its fitted time; a transfer too, or its bytes' time on a slower emulated link.

        A transfer without bytes is nothing at all: the executor does not submit it. On an emulated link the
        bytes arrive on a schedule that begins with the transfer, so its fixed time hides in the pace.
        """
        copies = moves(op)
        if copies and not work.h2d_bytes:
            return Price(copies=True, tokens=tokens)
        key = cost_key(plan.phase, plan.selector, op.kind)
        alone_s = self.cost(key).seconds(work)
        if not copies:
            time = Charge(label=TIME, size=alone_s, uses={}, cap=1.0)
            return Price(
                charges=(time,), tokens=tokens, launch_s=self.dispatch_s.value, wake_s=self.wake_s.value, key=key
            )
        if not alone_s:
            raise ProfileError(f"cost of {key!r} is 0 for {work.h2d_bytes:g} bytes; measure it again")
        link, rate = self.link_bytes_per_s, work.h2d_bytes / alone_s
        flow = Charge(label=LINK, size=work.h2d_bytes, uses={} if link is None else {"h2d": 1.0}, cap=rate)
        load = 1.0 if link is None else min(1.0, link / rate)
        return Price(charges=(flow,), launch_s=self.copy_start_s.value, copies=True, tokens=tokens, load=load, key=key)

    def cost(self, key: str) -> KindCost:
        """Cost of one kind; raises ProfileError for a kind that was not measured."""
        if key not in self.costs:
            raise ProfileError(
                f"profile {self.name!r} has no cost for {key!r}; measured: {', '.join(sorted(self.costs))}; "
                "calibrate again with this selector and phase"
            )
        return self.costs[key]

    def slowdown(self, mine: Price, others: Sequence[Price]) -> float:
        """The measured slowdown of the kind beside a busy other lane, in proportion to that lane's load."""
        load = max((other.load for other in others if other.copies != mine.copies and other.charges), default=0.0)
        return 1 + (self.costs[mine.key].slowdown - 1) * load if mine.key else 1.0

    @property
    def step_s(self) -> float:
        """What the caller does between two steps."""
        return self.between_steps_s.value

    @property
    def device_bytes(self) -> float:
        """All memory: both tiers lie in it."""
        return self.ram_bytes.value

    @property
    def reserved_bytes(self) -> float:
        """Nothing: a fitted profile holds the memory that was free."""
        return 0.0

    @property
    def host_bytes(self) -> float | None:
        """None: the host store comes out of the same memory."""
        return None

    def with_link(self, bytes_per_s: float) -> Self:
        """Hold the copy lane to an emulated link."""
        if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
            raise ProfileError(f"link={bytes_per_s} bytes/s must be finite and > 0")
        return attrs.evolve(self, link_bytes_per_s=float(bytes_per_s))

    def kernel_ceilings(self) -> tuple[float, float]:
        """No ceilings: times were measured, not derived."""
        return math.inf, math.inf

    def bases(self) -> dict[str, Basis]:
        """What each number rests on; every cost was measured."""
        return {**super().bases(), **{f"costs.{key}": Basis.MEASURED for key in self.costs}}
