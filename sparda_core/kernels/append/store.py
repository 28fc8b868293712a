"""What the append kernels of a GPU are told: how fused projections lie, and where K and V of new tokens go."""

from __future__ import annotations

import attrs
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.tables import Paged


@attrs.frozen(kw_only=True)
class FusedHeads:
    """Heads in one row of a layer's fused product: [q | k | forecast_next? | forecast_own? | v], each D values.

    q, kv               query heads Hq, KV heads Hk
    has_next, has_own   whether Hk Forecast heads for a later layer, for this layer, are among them
    """

    q: int
    kv: int
    has_next: bool = False
    has_own: bool = False

    @property
    def total(self) -> int:
        """Heads in a row."""
        return self.q + self.kv * (2 + self.has_next + self.has_own)


@attrs.frozen(kw_only=True, eq=False)
class Store:
    """Where K and V of each place's token go. Their device place is exactly one of `device` and (`slots`, `tail`).

    device  resident layer: pages on the device, the block found by its logical id
    slots   offloaded layer: `DeviceSlots.array` [n, 2, block, D], with
    tail    int32 [B, Hk], index into it of each row's current block (`DeviceDiff.tail`); -1 writes nothing
    host    pages in pinned host memory, written through; None on a resident layer, and where the host copy has
            another dtype than K and V (float8 is written when a block closes)
    """

    device: Paged | None = None
    slots: torch.Tensor | None = None
    tail: torch.Tensor | None = None
    host: Paged | None = None

    def __attrs_post_init__(self) -> None:
        if (self.device is None) != (self.slots is not None) or (self.slots is None) != (self.tail is None):
            raise ConfigError("a store is `device` pages, or `slots` with their `tail`: give one of the two")
        if self.host is not None and self.host.array.dtype == torch.uint8:
            raise ConfigError("a float8 host copy is written when a block closes, not token by token: leave host out")
