"""What of a capacity plan fits a machine, and what to change where it does not. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from sparda_core.runtimes.gpu.capacity import SLOT_STEP, CapacityPlan, largest

#: Rows and tokens that are looked at: beyond them is "any number".
MOST_ROWS, MOST_TOKENS = 65536, 1 << 24


@attrs.frozen(kw_only=True)
class Room:
    """A machine's memory; None: unknown, and never too small.

    device_bytes  of the GPU
    host_bytes    that may be pinned
    """

    device_bytes: int | None = None
    host_bytes: int | None = None

    def holds(self, plan: CapacityPlan) -> bool:
        """Whether both tiers have room for it, and its host store at least one page of everything."""
        return not self.short(plan) and plan.host_blocks >= plan.least_host_blocks

    def short(self, plan: CapacityPlan) -> dict[str, int]:
        """Bytes that are missing, by tier; only tiers that lack any."""
        needs = {"device": (plan.device_bytes, self.device_bytes), "host": (plan.host_bytes, self.host_bytes)}
        return {tier: need - have for tier, (need, have) in needs.items() if have is not None and need > have}


def most_rows(plan: CapacityPlan, room: Room) -> int:
    """Rows of this length that fit, with these slots; MOST_ROWS where memory sets no bound below it."""
    return largest(lambda n: room.holds(plan.sized(places=n)), MOST_ROWS)


def most_tokens(plan: CapacityPlan, room: Room) -> int:
    """Tokens of each row that fit, with so many rows; MOST_TOKENS where memory sets no bound below it."""
    return largest(lambda n: room.holds(plan.sized(tokens=n)), MOST_TOKENS)


def most_slots(plan: CapacityPlan, room: Room) -> int:
    """Slots that fit: a multiple of SLOT_STEP or the budget, no more than blocks; 0 where not even the budget does."""
    budget = plan.spec.budget
    if not plan.offloaded_layers or not room.holds(attrs.evolve(plan, slots=budget)):
        return 0
    most = max(budget, -(-plan.blocks // SLOT_STEP) * SLOT_STEP)
    found = largest(lambda n: room.holds(attrs.evolve(plan, slots=n)), most)
    return max(budget, found // SLOT_STEP * SLOT_STEP)


@attrs.frozen(kw_only=True)
class Way:
    """One change that makes it fit."""

    change: str
    plan: CapacityPlan


#: Name of a runtime that offloads, and the same load under it.
Offloaded = tuple[str, Callable[[], CapacityPlan]]


def ways_out(plan: CapacityPlan, room: Room, *, offloaded: Offloaded | None = None) -> list[Way]:
    """Changes, each of which alone makes `plan` fit, the one that costs least first; empty where it fits already.

    offloaded  where the plan is of a runtime that does not offload
    """
    if room.holds(plan):
        return []
    return [way for way in _candidates(plan, room, offloaded) if room.holds(way.plan)]


def _candidates(plan: CapacityPlan, room: Room, offloaded: Offloaded | None) -> Iterator[Way]:
    fewest = plan.spec.budget
    if plan.slots > fewest and plan.offloaded_layers:
        slots = max(fewest, most_slots(plan, room))
        yield Way(change=f"slots={slots} instead of {plan.slots}", plan=attrs.evolve(plan, slots=slots))
    if plan.offloaded_layers and plan.host_kv_bytes > 1:
        narrow = attrs.evolve(plan, host_kv_bytes=1)
        yield Way(change="host_dtype=fp8: half the host's bytes, answers change a little", plan=narrow)
    if offloaded is not None:
        yield Way(change=f"runtime {offloaded[0]}", plan=offloaded[1]())
    rows, tokens = most_rows(plan, room), most_tokens(plan, room)
    if rows:
        yield Way(change=f"{rows} rows of {plan.tokens} tokens", plan=plan.sized(places=rows))
    if tokens:
        yield Way(change=f"{plan.places} rows of {tokens} tokens", plan=plan.sized(tokens=tokens))
