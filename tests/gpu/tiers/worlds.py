"""Small sizes for the tests of a GPU session's memory."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.runtimes.gpu.tiers import GpuTiers
from sparda_core.shapes import BlockSpec, ModelShape
from tests.gpu_env import DEVICE

SPEC = BlockSpec(block=8, window=8, stride=4, sink=1, local=1, budget=4)
SHAPE = ModelShape(
    name="tiny", layers=3, hidden=16, ffn=32, q_heads=4, kv_heads=2, head_dim=4, vocab=11, context=256
)  # fmt: skip
PLAN = CapacityPlan(
    shape=SHAPE, spec=SPEC, places=3, tokens=80, resident_layers=1, slots=6, kv_bytes=4, host_kv_bytes=4,
    page_blocks=2,
)  # fmt: skip


def open_tiers(dtype: torch.dtype = torch.float32, **changes: Any) -> GpuTiers:
    """Tiers of PLAN with changes, poisoned where memory is fresh."""
    width = dtype.itemsize
    plan = attrs.evolve(PLAN, **{"kv_bytes": width, "host_kv_bytes": width, **changes})
    tiers = GpuTiers(plan, dtype=dtype, device=DEVICE)
    for buffer in (tiers.entries.entries, tiers.entries.ring, *([tiers.host.slots.array] if tiers.host else [])):
        buffer.fill_(float("nan"))
    for layer in tiers.layers:
        for pages in (layer.host, layer.device):
            if pages is not None:
                pages.array.fill_(255 if pages.array.dtype == torch.uint8 else float("nan"))
    return tiers


def tokens_of(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[L, 2, Hk, count, D] random K and V on the device."""
    made = torch.Generator().manual_seed(seed)
    shape = (SHAPE.layers, 2, SHAPE.kv_heads, count, SHAPE.head_dim)
    return torch.randn(shape, generator=made).to(DEVICE, dtype)


def append(tiers: GpuTiers, place: int, kv: torch.Tensor) -> None:
    """Load tokens at the end of a row, as a prefill does."""
    start = tiers.length(place)
    stop = start + kv.shape[3]
    tiers.reserve({place: stop})
    for layer in range(tiers.shape.layers):
        tiers.load(place, layer, kv[layer, 0], kv[layer, 1], start)
    tiers.refresh(place, stop, stale_from=start)
    tiers.commit({place: stop})
