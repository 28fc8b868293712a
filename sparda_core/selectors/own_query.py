"""The query of the layer that selects for itself, on any device. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda_core.errors import PlanError

if TYPE_CHECKING:
    import torch

    from sparda_core.device_view import DeviceView
    from sparda_core.layer_view import LayerView


def own_query(view: LayerView | DeviceView) -> torch.Tensor:
    """view.query, [B, Hq, T, D] on a CPU, [B, Hq, D] of a decode step on a GPU.

    raises  PlanError in a selection made during another layer
    """
    if view.query is None:
        raise PlanError(
            f"selection of layer {view.layer} runs during layer {view.source} and needs the layer's own query: "
            "plan it in its own layer (lead 0)"
        )
    return view.query
