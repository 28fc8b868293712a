"""Tensors of one layer of a decode step, of random values, for the kernels that are timed."""

from __future__ import annotations

import torch

from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.sizes import Sizes
from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import AttendScratch, attend_scratch
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.tables import DeviceDiff, DeviceSlots, Paged


class Scene:
    """What kernels of `rows` rows at the end of their context read and write."""

    def __init__(self, sizes: Sizes, rows: int) -> None:
        self.sizes, self.rows, self.device = sizes, rows, device_of()
        self.dtype: torch.dtype = getattr(torch, sizes.dtype)
        self.pairs = (rows, sizes.shape.kv_heads)
        self.blocks = sizes.spec.block_count(sizes.context) + 1
        self.position = self.ints(rows, value=sizes.context - 2)
        self.angles = torch.ones(sizes.context, sizes.shape.head_dim, device=self.device)

    def random(self, *shape: int) -> torch.Tensor:
        """Normal values of the dtype measured."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def ints(self, *shape: int, value: int = 0) -> torch.Tensor:
        """int32 of one value."""
        return torch.full(shape, value, dtype=torch.int32, device=self.device)

    def scores(self, seed: int) -> torch.Tensor:
        """float32 [B, Hk, M]."""
        made = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*self.pairs, self.blocks, device=self.device, generator=made)

    def changed(self, scores: torch.Tensor, share: float) -> torch.Tensor:
        """The same scores but for some blocks, a share of them, that have others."""
        other = torch.rand_like(scores) < share
        return torch.where(other, torch.randn_like(scores), scores)

    def choice(self) -> Choice:
        """A selection that nobody made yet."""
        return Choice(blocks=self.ints(*self.pairs, self.sizes.spec.budget, value=-1), counts=self.ints(*self.pairs))

    def slots(self, factor: int = 1) -> DeviceSlots:
        """Empty slots, so many times the budget, for tables alone: their blocks are never touched."""
        count = factor * self.sizes.spec.budget
        return DeviceSlots(
            array=self._no_data(), held=self.ints(*self.pairs, count, value=-1),
            used=self.ints(*self.pairs, count), where=self.ints(*self.pairs, self.blocks, value=-1),
        )  # fmt: skip

    def host(self) -> Paged:
        """Where blocks to be moved are read: a page each."""
        pages = self.rows * self.sizes.shape.kv_heads * self.blocks
        table = torch.arange(pages, dtype=torch.int32, device=self.device).view(*self.pairs, self.blocks)
        return Paged(array=self._no_data(), table=table, page_blocks=1)

    def diff(self, count: torch.Tensor, *, lists: int = 1) -> DeviceDiff:
        """Room for what a diff leaves, `lists` of them one behind another; int32 [1] `count` is their length."""
        budget = self.sizes.spec.budget
        room = lists * self.rows * self.sizes.shape.kv_heads * budget
        return DeviceDiff(
            physical=self.ints(*self.pairs, budget), tail=self.ints(*self.pairs), source=self.ints(room),
            target=self.ints(room), count=count, misses=self.ints(*self.pairs), opened=self.ints(*self.pairs),
        )  # fmt: skip

    def attention(self, blocks: int, splits: int | None = None) -> AttendScratch:
        """Scratch for lists of so many blocks, each cut into so many pieces; None: as `cut_lists` has it."""
        shape = self.sizes.shape
        return attend_scratch(
            places=self.rows, q_heads=shape.q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, blocks=blocks,
            block=self.sizes.spec.block, dtype=self.dtype, device=self.device,
            tuning=Tuning(splits=splits),
        )  # fmt: skip

    def _no_data(self) -> torch.Tensor:
        shape = (0, 2, self.sizes.spec.block, self.sizes.shape.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)
