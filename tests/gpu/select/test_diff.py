"""The diff on a GPU keeps the same tables as the reference, slot for slot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.kernels.diff.gpu import choose_and_diff, diff_slots
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.policy import POLICIES
from sparda_core.shapes import BlockSpec
from tests.gpu.select.cases import INF, NAN, World, generator, seeds
from tests.gpu.select.checks import check_step, expect, model_of

#: A GPU can afford more than the interpreter.
BLOCKS = 18
EXAMPLES, STEPS = (40, 64) if DEVICE.type == "cuda" else (3, 8)


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
    arrived = torch.zeros(1, dtype=torch.int32, device=DEVICE) if seed % 2 else None
    position = data.draw(st.lists(st.integers(-1, BLOCKS * 16 - 1 - steps), min_size=2, max_size=2))
    for step in range(steps):
        sits_out = data.draw(st.integers(0, 5)) == 0
        at = [-1 if p < 0 or (sits_out and place == 0) else p + step for place, p in enumerate(position)]
        world.start(torch.tensor(at), tick=step + 1)
        scores = world.scores(scores_like(seed + step, (2, 2, BLOCKS)))
        if fused:
            choose_and_diff(
                scores, world.position, spec, world.choice, world.slots, world.host, policy, world.tick, world.diff,
                arrived,
            )  # fmt: skip
        else:
            choose_blocks(scores, world.position, spec, world.choice)
            diff_slots(
                world.choice, world.position, world.slots, world.host, policy, scores, world.tick, world.diff, arrived
            )
        # Every row and head says that its part of the list is whole, an inactive one too.
        assert arrived is None or int(arrived) == 4 * (step + 1)
        check_step(world, model, expect(world, model, world.choice.blocks, policy, scores, step + 1))
