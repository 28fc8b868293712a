"""Slots that a trace warmed, then the diff step by step: who sits where is what the simulator says."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.bench.decode.fill import put_in_slots
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.kernels.diff.gpu import diff_slots
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.residency import POLICIES, Pools
from tests.gpu.select.cases import World

PLACES, HEADS, BLOCKS = 2, 2, 20
STREAMS = PLACES * HEADS
SPEC = BlockSpec(block=16, window=8, stride=8, sink=1, local=1, budget=5)
EXAMPLES, STEPS = (40, 48) if DEVICE.type == "cuda" else (3, 5)


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """A warmed layer on the device, and the same in the simulator."""

    world: World
    pools: Pools
    trace: BatchTrace
    policy: str

    @classmethod
    def of(cls, *, policy: str, slots: int, known: int, steps: int, seed: int) -> Scene:
        """`known` blocks were selected before; where that is less than the slots, some stay empty."""
        draw = np.random.default_rng(seed)
        order = np.argsort(draw.random((STREAMS, BLOCKS)), axis=1).astype(np.int32)
        drawn = np.argsort(draw.random((steps, STREAMS, BLOCKS)), axis=2)[..., : SPEC.budget]
        chosen = np.asarray(np.sort(drawn, axis=2), np.int32)
        for step, stream in np.argwhere(draw.random((steps, STREAMS)) < 0.2):  # a shorter one, or nothing
            chosen[step, stream, draw.integers(0, SPEC.budget) :] = -1
        trace = BatchTrace(
            selections=chosen, before=order[:, : SPEC.budget], stack=order[:, SPEC.budget : known],
            streams=np.arange(STREAMS).reshape(1, PLACES, HEADS),
        )  # fmt: skip
        pools = Pools(streams=STREAMS, slots=slots, policy=policy, blocks=BLOCKS)
        pools.warm(trace.before, trace.stack)
        world = World.of(SPEC, places=PLACES, heads=HEADS, slots=slots, blocks=BLOCKS, seed=seed)
        scene = cls(world=world, pools=pools, trace=trace, policy=policy)
        put_in_slots(world.slots, trace.held(slots, policy)[trace.streams[0]], trace.used(slots))
        return scene

    def step(self, number: int) -> None:
        """One selection through both; raises AssertionError where they differ."""
        world, chosen = self.world, self.trace.selections[number]
        position = torch.tensor([BLOCKS * SPEC.block - 1] * PLACES)
        world.start(position, tick=self.trace.history + 1 + number)
        world.choice.blocks.copy_(torch.from_numpy(chosen.reshape(PLACES, HEADS, -1)))
        diff_slots(
            world.choice, world.position, world.slots, world.host, self.policy, None, world.tick, world.diff
        )
        missed = self.pools.play(chosen, np.full(STREAMS, -1))
        np.testing.assert_array_equal(world.diff.misses.cpu().numpy().reshape(-1), missed)
        np.testing.assert_array_equal(self.held(), self.pools.held)

    def held(self) -> npt.NDArray[np.int32]:
        return self.world.slots.held.cpu().numpy().reshape(STREAMS, -1)


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=EXAMPLES)
@given(more=st.integers(0, 9), known=st.integers(SPEC.budget, BLOCKS), seed=st.integers(0, 2**20))
@example(more=9, known=SPEC.budget, seed=0)
@example(more=4, known=SPEC.budget + 2, seed=1)
def test_warm_slots_and_every_step_after_are_those_of_the_simulator(
    *, policy: str, more: int, known: int, seed: int
) -> None:
    scene = Scene.of(policy=policy, slots=SPEC.budget + more, known=known, steps=STEPS, seed=seed)
    np.testing.assert_array_equal(scene.held(), scene.pools.held)
    for number in range(STEPS):
        scene.step(number)


def test_ticks_below_zero_would_let_a_block_go_while_slots_are_empty() -> None:
    """How it was once: the oldest warm block had a negative tick, and went before an empty slot was taken."""
    scene = Scene.of(policy="lru", slots=SPEC.budget + 6, known=SPEC.budget + 3, steps=1, seed=3)
    scene.world.slots.used.copy_(-torch.arange(SPEC.budget + 6, dtype=torch.int32).expand(PLACES, HEADS, -1))
    with pytest.raises(AssertionError):
        scene.step(0)


def test_no_tick_of_a_warm_slot_is_negative_and_none_is_later_than_the_last_selection() -> None:
    scene = Scene.of(policy="lru", slots=SPEC.budget + 9, known=SPEC.budget + 4, steps=1, seed=5)
    used = scene.trace.used(SPEC.budget + 9)
    assert used.tolist() == [5] * SPEC.budget + [4, 3, 2, 1] + [0] * 5
