"""`random`: a pure function that looks like chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparda_core.errors import ConfigError
from sparda_core.selectors.uniform import Uniform
from tests.selectors.world import SHAPE, SPEC, Drive, World

POSITION, BLOCKS = 1000, 63  # free candidates: all but the sink, the current block and the one before
WORLD = World.random(texts=1, tokens=POSITION + 200)


def chosen(seed: int) -> np.ndarray:
    """Free blocks at eight positions of one block, [positions * L * Hk, free]."""
    drive = Drive(Uniform(seed=seed), WORLD, lead=1)
    rows = [drive.decode([0], [position])[:, 0, :, 0, 1:-2] for position in range(POSITION, POSITION + 8)]
    return np.stack(rows).reshape(-1, SPEC.free)


def test_free_blocks_are_hit_as_often_as_chance_says() -> None:
    ids = np.concatenate([chosen(seed) for seed in range(40)]).ravel()
    counts = np.bincount(ids, minlength=BLOCKS)
    expected = ids.size / 60  # blocks 1 .. 60 are free at positions 1000 .. 1007
    assert counts[0] == 0
    assert (counts[61:] == 0).all()
    assert abs(counts[1:61] - expected).max() < 5 * expected**0.5
    chi2 = ((counts[1:61] - expected) ** 2 / expected).sum()
    assert 25 < chi2 < 110  # 59 degrees of freedom: far outside either end would be no chance


def test_layers_heads_positions_and_seeds_draw_apart() -> None:
    a, b = chosen(0), chosen(1)
    assert len({tuple(ids) for ids in a}) > 0.9 * len(a)
    assert (a != b).any(-1).mean() > 0.9


def test_recall_of_another_seeds_choice_is_that_of_chance() -> None:
    left, right = (np.concatenate([chosen(seed) for seed in seeds]) for seeds in (range(0, 40, 2), range(1, 40, 2)))
    hits = (left[..., :, None] == right[..., None, :]).any(-1)
    assert abs(hits.mean() - SPEC.free / 60) < 0.015


def test_two_rows_at_one_position_draw_the_same_and_scores_lie_in_the_unit_interval() -> None:
    bound = Uniform(seed=2**63 - 1).bind(shape=SHAPE, spec=SPEC)
    view = WORLD.view([0, 0], [[100], [100]], layer=2, source=1)
    bound.run("score", view)
    assert view.scores is not None
    assert torch.equal(view.scores[0], view.scores[1])
    assert float(view.scores.min()) >= 0
    assert float(view.scores.max()) < 1


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1"])
def test_a_seed_that_is_no_seed_is_refused(seed: object) -> None:
    with pytest.raises(ConfigError, match=r"seed=.* must be an integer in \[0, 2\*\*63\)"):
        Uniform(seed=seed)  # type: ignore[arg-type]
