"""The diff on a GPU keeps the same tables as the reference, slot for slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.kernels.diff.reference import diff_slots as reference
from sparda_core.kernels.diff.result import Diff, Slots
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.policy import POLICIES
from sparda_core.shapes import BlockSpec
from tests.gpu.select.cases import INF, NAN, World, generator, seeds

#: A GPU can afford more than the interpreter.
BLOCKS = 18
EXAMPLES, STEPS = (40, 64) if DEVICE.type == "cuda" else (3, 8)


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


def scores_like(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Floats with many ties and every special value."""
    made = generator(seed)
    values = torch.tensor([-INF, NAN, -0.0, 0.0, *torch.randn(12, generator=made).tolist()])
    return values[torch.randint(values.numel(), shape, generator=made)]


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=EXAMPLES)
@given(
    data=st.data(), seed=seeds, free=st.integers(0, 6), more=st.integers(0, 9), steps=st.integers(2, STEPS),
    fused=st.booleans(),
)  # fmt: skip
def test_tables_stay_those_of_the_reference_over_many_steps(
    *, policy: str, data: st.DataObject, seed: int, free: int, more: int, steps: int, fused: bool
) -> None:
    spec = BlockSpec(block=16, window=8, stride=8, sink=1, local=1, budget=3 + free)
    world = World.of(spec, places=2, heads=2, slots=spec.budget + more, blocks=BLOCKS, seed=seed)
    model = model_of(world)
    position = data.draw(st.lists(st.integers(-1, BLOCKS * 16 - 1 - steps), min_size=2, max_size=2))
    for step in range(steps):
        sits_out = data.draw(st.integers(0, 5)) == 0
        at = [-1 if p < 0 or (sits_out and place == 0) else p + step for place, p in enumerate(position)]
        world.start(torch.tensor(at), tick=step + 1)
        scores = world.scores(scores_like(seed + step, (2, 2, BLOCKS)))
        if fused:
            choose_and_diff(
                scores, world.position, spec, world.choice, world.slots, world.host, policy, world.tick, world.diff
            )
        else:
            choose_blocks(scores, world.position, spec, world.choice)
            diff_slots(
                world.choice, world.position, world.slots, world.host, policy, scores, world.tick, world.diff
            )
        check_step(world, model, expect(world, model, world.choice.blocks, policy, scores, step + 1))
