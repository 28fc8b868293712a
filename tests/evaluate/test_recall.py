from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ConfigError
from sparda_core.evaluate.recall import RecallTally, eligible_blocks, forced_mask
from sparda_core.shapes import BlockSpec
from tests.evaluate.cases import draw_selection

SPECS = [
    BlockSpec(block=4, window=4, stride=2, sink=1, local=1, budget=6),
    BlockSpec(block=4, window=4, stride=4, sink=0, local=2, budget=5),
    BlockSpec(block=8, window=8, stride=4, sink=3, local=1, budget=9),
]


@given(seed=st.integers(0, 10**6), spec=st.sampled_from(SPECS))
def test_recall_equals_a_loop_over_sets(seed: int, spec: BlockSpec) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.integers(-1, 24 * spec.block, (3, 2))
    chosen = draw_selection(rng, positions, 2, spec, spec.budget)
    wanted = draw_selection(rng, positions, 2, spec, spec.budget - 1)
    frees, alls, chances = [], [], []
    for (b, h, t), _ in np.ndenumerate(chosen[..., 0]):
        position = int(positions[b, t])
        if position < 0:
            continue
        mine, his = ({int(i) for i in ids[b, h, t] if i >= 0} for ids in (chosen, wanted))
        forced = set(spec.forced_blocks(position))
        alls.append(len(mine & his) / len(his))
        if his - forced:
            frees.append(len((mine & his) - forced) / len(his - forced))
            chances.append(len(his - forced) / (position // spec.block + 1 - len(forced)))
    tally = RecallTally(spec=spec)
    tally.add(chosen, wanted, positions)
    got = tally.result()
    assert got.count == len(frees)
    for value, parts in ((got.free, frees), (got.all, alls), (got.chance, chances)):
        assert math.isnan(value) if not parts else value == pytest.approx(np.mean(parts))


@given(seed=st.integers(0, 10**6), spec=st.sampled_from(SPECS))
def test_forced_and_eligible_blocks_agree_with_the_spec(seed: int, spec: BlockSpec) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.integers(-2, 20 * spec.block, (2, 3))
    width = 22
    ids = np.broadcast_to(np.arange(-1, width - 1, dtype=np.int32), (2, 1, 3, width))
    mask, eligible = forced_mask(ids, positions, spec), eligible_blocks(positions, spec)
    for (b, t), position in np.ndenumerate(positions):
        if position < 0:
            assert eligible[b, t] == 0
            continue
        forced = spec.forced_blocks(int(position))
        assert set(ids[b, 0, t][mask[b, 0, t]].tolist()) == set(forced)
        assert eligible[b, t] == position // spec.block + 1 - len(forced)


def test_a_selection_recalls_itself_and_is_above_chance() -> None:
    spec, rng = SPECS[0], np.random.default_rng(1)
    positions = np.full((4, 1), 100)
    ids = draw_selection(rng, positions, 3, spec, spec.budget)
    tally = RecallTally(spec=spec)
    tally.add(ids, ids, positions)
    assert tally.result().free == tally.result().all == tally.result().corrected == 1


def test_random_choices_sit_at_the_chance_level() -> None:
    spec, rng = SPECS[0], np.random.default_rng(2)
    positions = np.full((200, 1), 159)
    tally = RecallTally(spec=spec)
    forced = spec.forced_blocks(159)
    free = [b for b in range(40) if b not in forced]

    def draw() -> np.ndarray:
        rows = [sorted([*forced, *rng.choice(free, spec.free, replace=False)]) for _ in range(800)]
        return np.array(rows, np.int32).reshape(200, 4, 1, spec.budget)

    tally.add(draw(), draw(), positions)
    got = tally.result()
    assert got.chance == pytest.approx(spec.free / len(free))
    assert abs(got.corrected) < 0.05


def test_tallies_add_up_like_one_batch() -> None:
    spec, rng = SPECS[2], np.random.default_rng(3)
    positions = rng.integers(0, 200, (6, 1))
    one, two = (draw_selection(rng, positions, 2, spec, spec.budget) for _ in range(2))
    whole, left, right = (RecallTally(spec=spec) for _ in range(3))
    whole.add(one, two, positions)
    left.add(one[:2], two[:2], positions[:2])
    right.add(one[2:], two[2:], positions[2:])
    left.merge(right)
    assert left.result().count == whole.result().count
    assert left.result().free == pytest.approx(whole.result().free)
    assert left.result().all == pytest.approx(whole.result().all)
    assert left.result().chance == pytest.approx(whole.result().chance)


def test_selections_of_different_batches_are_refused() -> None:
    tally = RecallTally(spec=SPECS[0])
    ids = np.full((2, 1, 1, 4), -1, np.int32)
    with pytest.raises(ConfigError, match="must agree"):
        tally.add(ids, ids[:1], np.zeros((2, 1), np.int64))
    with pytest.raises(ConfigError, match="forced blocks differ"):
        tally.merge(RecallTally(spec=SPECS[1]))
