"""What the operations of a plan take alone, and which of them a plan lets run beside a transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from sparda_core.plan import Lane, StepPlan
from sparda_core.simulator.profile import Charge, Price


@attrs.frozen(kw_only=True)
class Window:
    """Operations of a plan by their position: some transfers, and the compute that stands around them.

    head       of the compute lane: what ends before the first of the transfers may start
    beside     of the compute lane: what runs from then until something waits for them
    transfers  of other lanes
    """

    head: tuple[int, ...]
    beside: tuple[int, ...]
    transfers: tuple[int, ...]


def alone_rate(charge: Charge, capacity: Mapping[str, float]) -> float:
    """Units a second of a flow with every resource to itself."""
    return min([charge.cap, *(capacity[name] / amount for name, amount in charge.uses.items() if amount)])


def alone_s(price: Price, capacity: Mapping[str, float]) -> float:
    """Seconds of one operation with the machine to itself, the launch gap before it included.

    An operation that the host issues in mid-step only after a wait takes the host's time for that, too.
    """
    if price.nothing and price.copies:
        return 0.0
    flows_s = max((charge.size / alone_rate(charge, capacity) for charge in price.charges), default=0.0)
    waits_s = price.issue_s + price.then_s if price.host_waits else 0.0
    return waits_s + price.launch_s + price.latency_s + flows_s


def windows(plan: StepPlan) -> tuple[Window, ...]:
    """The compute lane of a plan, cut before every operation that waits for another lane; the tail comes last.

    A transfer belongs to the window that ends with the first operation waiting for it, one that nothing waits for to
    the last. Together the windows hold every operation once. What a transfer of an earlier window still takes of a
    later one (leads above 1) is no part of this view.
    """
    at = {op.name: position for position, op in enumerate(plan.ops)}
    moved = [position for position, op in enumerate(plan.ops) if op.lane != Lane.COMPUTE]
    left, made, open_ops = set(moved), list[Window](), list[int]()
    for position, op in enumerate(plan.ops):
        if op.lane != Lane.COMPUTE:
            continue
        awaited = sorted(at[name] for name in op.after if at[name] in left)
        if awaited:
            made.append(_window(plan, at, open_ops, awaited))
            left -= set(awaited)
            open_ops = []
        open_ops.append(position)
    made.append(_window(plan, at, open_ops, sorted(left)))
    return tuple(made)


def _window(plan: StepPlan, at: Mapping[str, int], compute: Sequence[int], transfers: Sequence[int]) -> Window:
    ends = [max((at[name] for name in plan.ops[one].after), default=-1) for one in transfers]
    first = min(ends, default=-1)
    return Window(
        head=tuple(one for one in compute if one <= first), beside=tuple(one for one in compute if one > first),
        transfers=tuple(transfers),
    )  # fmt: skip


def overlaps(plan: StepPlan) -> bool:
    """Whether the plan lets any operation of the compute lane run beside a transfer that something waits for."""
    return any(window.beside and window.transfers for window in windows(plan)[:-1])
