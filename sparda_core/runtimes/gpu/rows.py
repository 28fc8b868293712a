"""RowState's memory, and what the host writes into it between steps."""

from __future__ import annotations

import torch

from sparda_core.runtimes.gpu.tier import RowState


def new_rows(places: int, device: torch.device) -> RowState:
    """State of `places` places, none of them active."""
    return RowState(
        position=torch.full((places,), -1, dtype=torch.int32, device=device),
        token=torch.zeros(places, dtype=torch.int64, device=device),
        tick=torch.zeros(1, dtype=torch.int32, device=device),
        seed=torch.zeros(places, dtype=torch.int64, device=device),
    )
