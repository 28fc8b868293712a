"""GPU halves of `dense` and `window`, which look at no state."""

from __future__ import annotations

from sparda_core.device_view import DeviceView
from sparda_core.kernels.listed.gpu import list_all, list_forced
from sparda_core.selector import DeviceRoom
from sparda_core.selectors.device.scored import ListedDevice


class DeviceWindow(ListedDevice):
    """Lists the forced blocks."""

    def fill(self, view: DeviceView) -> None:
        """Sink and local band."""
        list_forced(view.position, view.spec, view.choice, early=self.early)


class DeviceDense(ListedDevice):
    """Attention of a resident layer takes every block by itself, and nobody reads the choice.

    So nothing is launched, unless the budget holds every block of the longest row: then the choice lists them,
    which is what the diff of an offloaded layer needs.
    """

    takes_every_block = True

    def __init__(self, room: DeviceRoom) -> None:
        super().__init__(room)
        self._lists = room.spec.budget >= room.spec.block_count(room.tokens)

    def fill(self, view: DeviceView) -> None:
        """Blocks 0 .. current, where there is room for all that a row may have."""
        if self._lists:
            list_all(view.position, view.spec, view.choice, early=self.early)
