"""Tensor half of `window`."""

from __future__ import annotations

import torch

from sparda_core.layer_view import LayerView
from sparda_core.selection import NO_BLOCK
from sparda_core.selectors.scored import ListedSelector
from sparda_core.selectors.tensors.dense import for_every_head


class BoundWindow(ListedSelector):
    """Lists the forced blocks; `BlockSpec.forced_blocks` for many queries at once."""

    def __init__(self, *, kv_heads: int) -> None:
        self._kv_heads = kv_heads

    def blocks(self, view: LayerView) -> torch.Tensor:
        """int32 [B, Hk, T, budget]: sink, local band, then -1."""
        spec = view.spec
        current_BT1 = torch.div(view.positions, spec.block, rounding_mode="floor")[..., None]
        band_BT1 = (current_BT1 - spec.local).clamp_min(0)
        sink_BT1 = band_BT1.clamp_max(spec.sink)
        place_K = torch.arange(spec.budget, device=view.positions.device)
        ids_BTK = torch.where(place_K < sink_BT1, place_K, band_BT1 + place_K - sink_BT1)
        return for_every_head(torch.where(ids_BTK <= current_BT1, ids_BTK, NO_BLOCK), self._kv_heads)
