"""Random fused products, tables and stores for the append kernels; whatever is not asked for is NaN."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.tables import Paged
from sparda_core.models.rotary import RotaryTable
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def nan(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """Device memory that nobody may read before it is written."""
    return torch.full(size, torch.nan, dtype=dtype, device=DEVICE)


def strided(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """The same as a view of a larger tensor: two more rows, and two more of every axis but the first and last."""
    larger = nan(size[0] + 2, *(n + 2 for n in size[1:-1]), size[-1], dtype=dtype)
    return larger[tuple(slice(0, n) for n in size)]


def positions(here: Sequence[int]) -> torch.Tensor:
    """int32 [B], a view of a longer tensor whose end would be out of every range."""
    return torch.tensor([*here, 2**30], dtype=torch.int32, device=DEVICE)[:-1]


@attrs.define
class World:
    """One call's tensors. `places` are the rows' positions."""

    heads: FusedHeads
    size: int
    spec: BlockSpec
    places: Sequence[int]
    dtype: torch.dtype
    seed: int = 0
    tables: RotaryTable = attrs.field(init=False)
    stream: torch.Generator = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stream = torch.Generator().manual_seed(self.seed)
        length = max(1, *(here + 1 for here in self.places))
        self.tables = RotaryTable(head_dim=self.size, theta=1e4, length=length, dtype=torch.float32, device=DEVICE)

    def random(self, *size: int) -> torch.Tensor:
        """Normal values of the world's dtype on the device."""
        return torch.randn(size, generator=self.stream).to(DEVICE, self.dtype)

    def outputs(self) -> dict[str, torch.Tensor | None]:
        """Room for what `rotate_append` returns, poisoned."""
        rows, kv, size = len(self.places), self.heads.kv, self.size
        room = {name: strided(rows, kv, size, dtype=self.dtype) for name in ("key", "value")}
        return {
            **room,
            "query": strided(rows, self.heads.q, size, dtype=self.dtype),
            "forecast_next": strided(rows, kv, size, dtype=self.dtype) if self.heads.has_next else None,
            "forecast_own": strided(rows, kv, size, dtype=self.dtype) if self.heads.has_own else None,
        }

    def ring(self) -> torch.Tensor:
        """Keys before this step's; NaN where a row is too young to have one."""
        ring = strided(len(self.places), self.heads.kv, self.spec.window, self.size, dtype=self.dtype)
        for row, here in enumerate(self.places):
            known = [p % self.spec.window for p in range(max(0, here - self.spec.window + 1), here)]
            ring[row, :, known] = self.random(self.heads.kv, len(known), self.size)
        return ring

    def entries(self) -> torch.Tensor:
        """Room for the entries of the longest row."""
        count = self.spec.entry_count(max(0, *self.places) + 1) + 1
        return strided(len(self.places), self.heads.kv, count, self.size, dtype=self.dtype)

    def store(self, where: str, *, host: bool) -> Store:
        """Poisoned pages, or slots with tails, on the device; poisoned pages in host memory if asked for."""
        through = self.pages(pinned=True) if host else None
        if where == "pages":
            return Store(device=self.pages(pinned=False), host=through)
        rows, kv = len(self.places), self.heads.kv
        slots = nan(rows * kv * 3, 2, self.spec.block, self.size, dtype=self.dtype)
        tail = torch.randperm(rows * kv * 3, generator=self.stream)[: rows * kv].view(rows, kv).int().to(DEVICE)
        return Store(slots=slots, tail=tail, host=through)

    def pages(self, *, pinned: bool, page_blocks: int = 2) -> Paged:
        """A page for every two blocks of every (row, head), in random order, as a view of a wider table."""
        rows, kv = len(self.places), self.heads.kv
        width = max(0, *self.places) // self.spec.block // page_blocks + 1
        order = torch.randperm(rows * kv * width, generator=self.stream).view(rows, kv, width).int()
        table = torch.full((rows, kv + 1, width + 3), -1, dtype=torch.int32)
        table[:, :kv, :width] = order
        array = nan(order.numel() * page_blocks, 2, self.spec.block, self.size, dtype=self.dtype)
        if pinned:
            array = array.cpu().pin_memory() if DEVICE.type == "cuda" else array
        return Paged(array=array, table=table.to(DEVICE)[:, :kv], page_blocks=page_blocks)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal where both are unwritten (NaN), and near by norm elsewhere."""
    assert torch.equal(got.isnan().cpu(), want.isnan().cpu()), "written where it should not be, or the reverse"
    wide, exact = got.cpu().double().nan_to_num(), want.cpu().double().nan_to_num()
    error = float((wide - exact).norm() / exact.norm().clamp_min(1e-12))
    assert error <= TOLERANCE[got.dtype], f"relative error {error:.1e} in {got.dtype}"
