"""Sizes that the stores of a GPU session share."""

from __future__ import annotations

import attrs
import torch

from sparda_core.runtimes.gpu.capacity import CapacityPlan
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class StoreSizes:
    """L layers of B places, Hk KV heads, D head dim; rows of at most `tokens` tokens.

    float8  the host copy is float8 with scales
    """

    layers: int
    places: int
    kv_heads: int
    head_dim: int
    tokens: int
    page_blocks: int
    slots: int
    spec: BlockSpec
    dtype: torch.dtype
    device: torch.device
    float8: bool = False

    @classmethod
    def of(cls, plan: CapacityPlan, layers: int, dtype: torch.dtype, device: torch.device) -> StoreSizes:
        """Those of some layers of a plan."""
        return cls(
            layers=layers, places=plan.places, kv_heads=plan.shape.kv_heads, head_dim=plan.shape.head_dim,
            tokens=plan.tokens, page_blocks=plan.page_blocks, slots=plan.slots, spec=plan.spec, dtype=dtype,
            device=device, float8=plan.float8,
        )  # fmt: skip

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return self.spec.block

    @property
    def lead(self) -> tuple[int, int, int]:
        """(L, B, Hk), the leading axes of every table."""
        return (self.layers, self.places, self.kv_heads)

    def ints(self, *shape: int, value: int) -> torch.Tensor:
        """int32 of one value on the device."""
        return torch.full(shape, value, dtype=torch.int32, device=self.device)

    def empty(self, *shape: int) -> torch.Tensor:
        """Values of keys on the device, undefined."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)
