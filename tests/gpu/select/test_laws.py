"""Laws of a diff on a GPU, from any lawful tables and any lawful selection."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.policy import POLICIES
from sparda_core.shapes import BlockSpec
from tests.gpu.select.cases import UNWRITTEN, World, generator, seeds
from tests.gpu.select.checks import check_step, expect, inverse, model_of

PLACES, HEADS = 3, 2
EXAMPLES = 60 if DEVICE.type == "cuda" else 5


def world_of(seed: int, *, width: int, slots: int, blocks: int) -> World:
    """Slots partly filled in any order and age, one place inactive, a selection of any size in the others."""
    rng = np.random.default_rng(seed)
    spec = BlockSpec(block=16, window=8, stride=8, sink=0, local=1, budget=width)
    world = World.of(spec, places=PLACES, heads=HEADS, slots=slots, blocks=blocks, seed=seed)
    current = rng.integers(0, blocks, PLACES)
    position = torch.from_numpy(current * 16 + rng.choice([0, 7], PLACES))
    position[rng.integers(0, PLACES)] = -1
    world.start(position, tick=50)
    for b, h in np.ndindex(PLACES, HEADS):
        reach = int(current[b]) + 1
        kept = min(slots, int(rng.integers(0, reach + 1)))
        for slot, block in zip(rng.permutation(slots)[:kept], rng.permutation(reach)[:kept], strict=True):
            world.slots.held[b, h, slot], world.slots.where[b, h, block] = int(block), int(slot)
        world.slots.used[b, h] = torch.from_numpy(rng.integers(0, 4, slots))
        count = int(rng.integers(0, min(width, reach) + 1)) if position[b] >= 0 else 0
        chosen = np.sort(rng.permutation(reach)[:count])
        world.choice.blocks[b, h] = -1
        world.choice.blocks[b, h, :count] = torch.from_numpy(chosen).int()
    return world


def run(world: World, policy: str, seed: int) -> None:
    """One diff, with scores that have ties."""
    shape = tuple(world.slots.where.shape)
    scores = world.scores(torch.randint(5, shape, generator=generator(seed)).float())
    diff_slots(world.choice, world.position, world.slots, world.host, policy, scores, world.tick, world.diff)


def contents(world: World) -> dict[str, Any]:
    """Everything that a diff may write, the list in any order."""
    told = {name: tensor.tolist() for name, tensor in attrs.asdict(world.slots, recurse=False).items()}
    told |= {name: tensor.tolist() for name, tensor in attrs.asdict(world.diff, recurse=False).items()}
    told["list"] = sorted(zip(told.pop("source"), told.pop("target"), strict=True))
    return told


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=EXAMPLES)
@given(seed=seeds, width=st.integers(2, 7), more=st.integers(0, 9), blocks=st.integers(4, 30))
def test_hits_and_misses_add_up_and_every_selected_block_ends_in_one_slot(
    *, policy: str, seed: int, width: int, more: int, blocks: int
) -> None:
    world = world_of(seed, width=width, slots=width + more, blocks=blocks)
    before = {name: getattr(world.slots, name).clone() for name in ("held", "used", "where")}
    run(world, policy, seed)
    chosen, physical = world.choice.blocks.cpu(), world.diff.physical.cpu()
    valid, active = chosen >= 0, (world.position >= 0).cpu()
    held = world.slots.held.cpu()

    np.testing.assert_array_equal(world.slots.where.cpu(), inverse(held.numpy().astype(np.int64), blocks))
    assert torch.equal(held.flatten()[physical[valid].long()], chosen[valid]), "a selected block is not resident"
    assert (physical[~valid] == -1).all()
    hits = (torch.gather(before["where"].cpu(), 2, chosen.clamp_min(0).long()) >= 0) & valid
    opens = torch.where(active & (world.position.cpu() % 16 == 0), world.position.cpu() // 16, -1)
    own = valid & (chosen == opens[:, None, None])
    listed = (valid & ~hits & ~own).sum(-1)
    assert torch.equal(world.diff.misses.cpu(), listed.int())
    assert torch.equal(world.diff.opened.cpu(), own.any(-1).int())
    assert int(world.diff.count) == int(listed.sum())
    assert (world.diff.source[int(listed.sum()) :] == UNWRITTEN).all(), "the list is longer than its count"
    still = ~valid.any(-1)
    for name, was in before.items():
        assert torch.equal(getattr(world.slots, name)[still], was[still]), f"{name} of a place that sat out changed"


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=EXAMPLES // 2)
@given(seed=seeds)
def test_the_same_diff_twice_is_the_same_and_again_misses_nothing(*, policy: str, seed: int) -> None:
    one, other = (world_of(seed, width=6, slots=9, blocks=20) for _ in range(2))
    run(one, policy, seed)
    run(other, policy, seed)
    assert contents(one) == contents(other)
    physical = one.diff.physical.clone()
    one.diff.count.zero_()
    one.tick.add_(1)
    run(one, policy, seed + 1)
    assert int(one.diff.count) == 0
    assert torch.equal(one.diff.physical, physical)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_of_500_in_600_slots_fills_and_turns_over_as_the_reference_does(policy: str) -> None:
    spec = BlockSpec(block=16, window=8, stride=8, sink=1, local=4, budget=500)
    world = World.of(spec, places=1, heads=1, slots=600, blocks=1200)
    model = model_of(world)
    for step in range(3):
        world.start(torch.tensor([1199 * 16 + step]), tick=step + 1)
        scores = world.scores(torch.randn(1, 1, 1200, generator=generator(step)))
        choose_and_diff(
            scores, world.position, spec, world.choice, world.slots, world.host, policy, world.tick, world.diff
        )
        check_step(world, model, expect(world, model, world.choice.blocks, policy, scores, step + 1))
    assert int(world.diff.misses[0, 0]) > 32, "victims are compared in more than one go"


def test_what_does_not_fit_is_refused_and_names_the_way_out() -> None:
    def refuse(
        error: type[Exception], match: str, *, policy: str = "score", scored: bool = True, **change: Any
    ) -> None:
        world = world_of(1, width=5, slots=6, blocks=9)
        scores = world.scores(torch.zeros(PLACES, HEADS, 9)) if scored else None
        world = attrs.evolve(world, **{name: make(world) for name, make in change.items()})
        with pytest.raises(error, match=match):
            diff_slots(world.choice, world.position, world.slots, world.host, policy, scores, world.tick, world.diff)

    refuse(ConfigError, "policy='score' needs the scores", scored=False)
    refuse(ConfigError, "did you mean 'lru'", policy="lrx")
    refuse(CapacityError, "lower the budget or raise slots", slots=lambda w: attrs.evolve(
        w.slots, held=w.slots.held[..., :4], used=w.slots.used[..., :4]))  # fmt: skip
    refuse(ConfigError, "source has room for 3 misses", diff=lambda w: attrs.evolve(w.diff, source=w.diff.source[:3]))
    refuse(ConfigError, r"tick is torch\.int64", tick=lambda w: w.tick.long())
    refuse(ConfigError, r"used has shape \[3, 2, 5\]", slots=lambda w: attrs.evolve(
        w.slots, used=w.slots.used[..., :5]))  # fmt: skip
    refuse(ConfigError, r"position has shape \[2\]", position=lambda w: w.position[:2])
