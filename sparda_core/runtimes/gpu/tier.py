"""What the operations of one layer work on, on a GPU. Made by the tiers, used by the bindings of a step."""

from __future__ import annotations

import attrs
import torch

from sparda_core.device_view import Choice
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged


@attrs.frozen(kw_only=True, eq=False)
class RowState:
    """What a step knows of its rows, on the device. B places.

    position  int32 [B], tokens in the cache = absolute position of the token being decoded; -1: no active row
    token     int64 [B], the token to decode; replaced by the sampled one at the end of a step
    tick      int32 [1], steps begun since the session opened; grows by one each step
    seed      int64 [B], of each row's sampling
    """

    position: torch.Tensor
    token: torch.Tensor
    tick: torch.Tensor
    seed: torch.Tensor

    def first(self, places: int) -> RowState:
        """The first `places` places, as views."""
        return attrs.evolve(
            self, position=self.position[:places], token=self.token[:places], seed=self.seed[:places]
        )


@attrs.frozen(kw_only=True, eq=False)
class LayerTier:
    """One layer's memory, for all places. Exactly one of `device` and (`slots`, `host`, `diff`) is there.

    entries  [B, Hk, C, D], compressed keys
    ring     [B, Hk, window, D], the newest keys of each row: key of position p at p % window
    device   every block, where the layer is resident
    slots    who sits in which slot, where the layer is offloaded
    host     every block, in pinned host memory
    diff     what the last diff left
    scores   float32 [B, Hk, M], where a selector scores this layer's blocks
    choice   this layer's selection
    bias     float32 [B, Hk, N], biases of this layer's tokens; None where the model has none
    means    float32 [B, Hk, C], their means, one for each entry
    """

    entries: torch.Tensor
    ring: torch.Tensor
    device: Paged | None
    slots: DeviceSlots | None
    host: Paged | None
    diff: DeviceDiff | None
    scores: torch.Tensor
    choice: Choice
    bias: torch.Tensor | None = None
    means: torch.Tensor | None = None
