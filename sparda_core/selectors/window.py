"""window: the forced blocks only, which is a sliding window with sinks."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import ListingDeclaration
from sparda_core.shapes import BlockSpec, ModelShape


@attrs.frozen(kw_only=True)
class Window(ListingDeclaration):
    """Selects the sink and the local band, any number of layers early, whatever else the budget would hold.

    For a window as wide as another method's budget, give it a spec whose `local` is
    budget - sink - 1.
    """

    name: ClassVar[str] = "window"
    lead = None

    def cut(self, spec: BlockSpec, tokens: int) -> BlockSpec:
        """A band that takes the whole budget."""
        return attrs.evolve(spec, local=max(spec.local, spec.budget - spec.sink - 1))

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.window import BoundWindow

        return BoundWindow(kv_heads=shape.kv_heads)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state."""
        from sparda_core.selectors.device.listed import DeviceWindow

        return DeviceWindow(room)
