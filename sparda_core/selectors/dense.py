"""dense: every block that holds a token. The baseline that all others are held against."""

from __future__ import annotations

from typing import ClassVar

import attrs

from sparda_core.selector import BoundSelector, DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import ListingDeclaration
from sparda_core.shapes import BlockSpec, ModelShape


@attrs.frozen(kw_only=True)
class Dense(ListingDeclaration):
    """Selects every visible block, any number of layers early.

    The budget must hold every block; a position beyond it is refused when it is reached.
    """

    name: ClassVar[str] = "dense"
    lead = None

    def cut(self, spec: BlockSpec, tokens: int) -> BlockSpec:
        """A budget that holds every block."""
        return spec.with_budget(max(spec.budget, spec.block_count(tokens)))

    def bind(self, *, shape: ModelShape, spec: BlockSpec) -> BoundSelector:
        """The tensor half; it keeps no state."""
        from sparda_core.selectors.tensors.dense import BoundDense

        return BoundDense(kv_heads=shape.kv_heads)

    def bind_device(self, room: DeviceRoom) -> DeviceSelector:
        """The GPU half; it keeps no state."""
        from sparda_core.selectors.device.listed import DeviceDense

        return DeviceDense(room)
