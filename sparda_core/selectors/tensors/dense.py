"""Tensor half of `dense`."""

from __future__ import annotations

import torch

from sparda_core.errors import ConfigError
from sparda_core.layer_view import LayerView
from sparda_core.selection import NO_BLOCK
from sparda_core.selectors.scored import ListedSelector


class BoundDense(ListedSelector):
    """Lists blocks 0 .. current."""

    def __init__(self, *, kv_heads: int) -> None:
        self._kv_heads = kv_heads

    def blocks(self, view: LayerView) -> torch.Tensor:
        """int32 [B, Hk, T, budget]; raises ConfigError where a query sees more blocks than the budget holds."""
        current_BT = torch.div(view.positions, view.spec.block, rounding_mode="floor")
        need = int(current_BT.max()) + 1 if current_BT.numel() else 0
        if need > view.spec.budget:
            raise ConfigError(
                f"budget={view.spec.budget} must be >= {need} for selector 'dense' at position "
                f"{int(view.positions.max())}: it attends to every block; raise budget (and slots), or choose "
                "selector 'query' or 'forecast'"
            )
        ids_K = torch.arange(view.spec.budget, dtype=torch.int32, device=view.positions.device)
        ids_BTK = torch.where(ids_K <= current_BT[..., None], ids_K, NO_BLOCK)
        return for_every_head(ids_BTK, self._kv_heads)


def for_every_head(ids_BTK: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """int32 [B, T, budget] -> contiguous int32 [B, Hk, T, budget], the same for every KV head."""
    batch, queries, budget = ids_BTK.shape
    return ids_BTK[:, None].expand(batch, kv_heads, queries, budget).to(torch.int32).contiguous()
