"""What a diff on a GPU must leave: the reference's tables, slot for slot. Import tests.gpu_env before this module."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.diff.reference import diff_slots as reference
from sparda_core.kernels.diff.result import Diff, Slots
from tests.gpu.select.cases import World


def model_of(world: World) -> Slots:
    """The same slots as the reference keeps them."""
    shape = tuple(world.slots.held.shape)
    return Slots(held=np.full(shape, -1, np.int64), used=np.zeros(shape, np.int64), unread=np.zeros(shape, np.bool_))


def expect(world: World, model: Slots, blocks: torch.Tensor, policy: str, scores: torch.Tensor, tick: int) -> Diff:
    """What the reference makes of this selection."""
    position = world.position.cpu().numpy().astype(np.int64)
    opened = np.where((position >= 0) & (position % world.spec.block == 0), position // world.spec.block, -1)
    places = np.arange(position.size)
    return reference(
        model, places, blocks.cpu().numpy(), opened, tick=tick, policy=policy, scores=scores.cpu().numpy()
    )


def check_step(world: World, model: Slots, want: Diff) -> None:
    """Tables, places, list and counts are the reference's; nothing else was written."""
    active = (world.position >= 0).cpu().numpy()
    got, slots = world.diff, world.slots
    np.testing.assert_array_equal(slots.held.cpu(), model.held)
    np.testing.assert_array_equal(slots.used.cpu().numpy()[model.held >= 0], model.used[model.held >= 0])
    np.testing.assert_array_equal(slots.where.cpu(), inverse(model.held, slots.where.shape[2]))
    np.testing.assert_array_equal(got.physical.cpu(), want.physical)
    np.testing.assert_array_equal(got.misses.cpu(), want.misses)
    np.testing.assert_array_equal(got.opened.cpu(), want.opened * active[:, None])
    last = np.maximum((want.physical >= 0).sum(-1, keepdims=True) - 1, 0)
    np.testing.assert_array_equal(got.tail.cpu(), np.take_along_axis(want.physical, last, -1)[..., 0])
    check_list(world, want)


def check_list(world: World, want: Diff) -> None:
    count = int(world.diff.count)
    assert count == int(want.misses.sum()) == want.miss_slots.size
    listed = zip(world.diff.source[:count].tolist(), world.diff.target[:count].tolist(), strict=True)
    table, page = world.host.table.cpu().numpy(), world.host.page_blocks
    source = table[want.miss_rows, want.miss_heads, want.miss_blocks // page] * page + want.miss_blocks % page
    assert sorted(listed) == sorted(zip(source.tolist(), want.miss_slots.tolist(), strict=True))


def inverse(held: npt.NDArray[np.int64], blocks: int) -> npt.NDArray[np.int32]:
    """Slot of each block; fails where a block sits in two."""
    where = np.full((*held.shape[:2], blocks), -1, np.int32)
    for b, h, s in zip(*np.nonzero(held >= 0), strict=True):
        assert where[b, h, held[b, h, s]] == -1, "a block sits in two slots"
        where[b, h, held[b, h, s]] = s
    return where
