"""Views of the first places of everything that is kept for all places."""

from __future__ import annotations

import attrs

from sparda_core.device_view import Choice
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged
from sparda_core.runtimes.gpu.tier import LayerTier


def first_of_tier(tier: LayerTier, places: int) -> LayerTier:
    """A layer's memory as a step of `places` places sees it. Slots and pages of all places stay where they are."""
    return attrs.evolve(
        tier,
        entries=tier.entries[:places], ring=tier.ring[:places], scores=tier.scores[:places],
        device=None if tier.device is None else _pages(tier.device, places),
        host=None if tier.host is None else _pages(tier.host, places),
        slots=None if tier.slots is None else _slots(tier.slots, places),
        diff=None if tier.diff is None else _diff(tier.diff, places),
        bias=None if tier.bias is None else tier.bias[:places],
        means=None if tier.means is None else tier.means[:places],
        choice=Choice(blocks=tier.choice.blocks[:places], counts=tier.choice.counts[:places]),
    )  # fmt: skip


def _pages(pages: Paged, places: int) -> Paged:
    return attrs.evolve(pages, table=pages.table[:places])


def _slots(slots: DeviceSlots, places: int) -> DeviceSlots:
    return attrs.evolve(
        slots, held=slots.held[:places], used=slots.used[:places], where=slots.where[:places]
    )  # fmt: skip


def _diff(diff: DeviceDiff, places: int) -> DeviceDiff:
    return attrs.evolve(
        diff, physical=diff.physical[:places], tail=diff.tail[:places], misses=diff.misses[:places],
        opened=diff.opened[:places],
    )  # fmt: skip
