"""The tables of `sparda capacity`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda_core.cli.screen import say, show_table, size

if TYPE_CHECKING:
    from sparda_core.cli.capacity import Verdict


def show_verdict(told: Verdict) -> None:
    """Where each byte goes, whether it fits, and what would."""
    plan, pair = told.plan, told.pair
    title = (
        f"{plan.shape.name}, {plan.places} x {plan.tokens} tokens, {pair.selector.name} x {pair.runtime.name}"
        + (f", {plan.slots} slots ({pair.runtime.policy})" if plan.offloaded_layers else "")
    )
    totals = {"device": plan.device_bytes, "host": plan.host_bytes}
    rows = [
        (tier, what, size(bytes_), f"{bytes_ / totals[tier]:.1%}")
        for tier, what, bytes_ in plan.as_table()
        if totals[tier]
    ]
    copy = told.copy
    size_of = f"{copy['ctas']} thread blocks, {copy['in_flight_bytes'] >> 10} KiB in flight each"
    copies = f"Copies: {size_of}, {copy['source']}."
    notes = [copies] if plan.offloaded_layers else []
    show_table(title, ("tier", "what", "bytes", "share"), rows, notes=notes)
    if told.fits is None:
        say("Does it fit?", "No memory was named: --profile, --gpu-memory-gib or --host-memory-gib judges it.")
        return
    say("It fits" if told.fits else "It does not fit", told.problem or _has(told))
    bounds = [("rows of this length", told.rows), ("tokens of each row", told.tokens), ("slots", told.slots)]
    show_table(
        "Most that fits, all else being equal", ("what", "asked", "fits"),
        [
            (name, str(asked), "any number" if most is None else str(most or "none"))
            for (name, most), asked in zip(bounds, (plan.places, plan.tokens, plan.slots), strict=True)
            if name != "slots" or plan.offloaded_layers
        ],
    )  # fmt: skip
    if not told.fits:
        show_table(
            "Each of these alone would make it fit", ("change", "device", "host"),
            [(way.change, size(way.plan.device_bytes), size(way.plan.host_bytes or None)) for way in told.ways]
            or [("nothing that is tried here: it wants more memory, or a smaller model", None, None)],
        )  # fmt: skip


def _has(told: Verdict) -> str:
    plan, room = told.plan, told.room
    tiers = (("device", plan.device_bytes, room.device_bytes), ("host", plan.host_bytes, room.host_bytes))
    return "; ".join(f"{tier}: {size(need)} of {size(have)}" for tier, need, have in tiers if have is not None)
