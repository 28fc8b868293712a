"""Misses by rank against pools that are played step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparda_core.evaluate.study.ranks import Bounds, rank_free
from sparda_core.evaluate.study.slots import Stretch, lru_misses, moved, score_misses
from sparda_core.simulator.residency import Pools
from tests.evaluate.study_world import SPEC

FIRST, STEPS, STREAMS, WARM = 100, 90, 3, 20
BUDGETS, MULTIPLES = (6, 8), (1, 2, 3)


def drifting(seed: int = 0) -> tuple[Stretch, torch.Tensor]:
    """Scores that change slowly, so that pools keep something of use."""
    positions = torch.arange(FIRST, FIRST + STEPS)
    bounds = Bounds.of(positions, SPEC.block_count(FIRST + STEPS), SPEC)
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn(STREAMS, STEPS, bounds.free.shape[1], generator=source, dtype=torch.float64)
    stretch = Stretch.of(
        positions, bounds, forced=SPEC.forced, block=SPEC.block, budgets=BUDGETS, multiples=MULTIPLES, warm=WARM
    )
    return stretch, rank_free(drawn.cumsum(1), bounds.free)


def played(stretch: Stretch, rank: torch.Tensor, budget: int, slots: int, policy: str) -> float:
    """One stream after another, block by block."""
    missed = 0
    for stream, selected in enumerate(stretch.selected(rank, budget).tolist()):
        held: dict[int, int] = {}  # block -> step of its last use
        for step, row in enumerate(selected):
            now = [b for b, taken in enumerate(row) if taken]
            if step >= WARM:
                missed += sum(b not in held and not bool(stretch.opens[step, b]) for b in now)
            held |= dict.fromkeys(now, step)
            place = rank[stream, step].tolist()
            others = [b for b in held if b not in now]
            keep = {
                "lru": sorted(others, key=lambda b: (-held[b], -b)),
                "score": sorted(others, key=lambda b: place[b]),
                "last-selection": [],
            }[policy][: slots - len(now)]
            held = {b: at for b, at in held.items() if b in now or b in keep}
    return missed / (STREAMS * (STEPS - WARM))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", BUDGETS)
def test_misses_are_those_of_pools_played_block_by_block(budget: int, seed: int) -> None:
    stretch, rank = drifting(seed)
    assert moved(stretch, rank, budget)["fresh"] == pytest.approx(played(stretch, rank, budget, 99, "last-selection"))
    by_size = lru_misses(stretch, rank, budget)
    for multiple in MULTIPLES:
        assert by_size[multiple] == pytest.approx(played(stretch, rank, budget, multiple * budget, "lru"))


def test_pools_that_go_by_score_are_played_side_by_side_as_one_by_one() -> None:
    (stretch, first), (_, second) = drifting(1), drifting(2)
    got = score_misses(stretch, torch.stack((first, second)))
    for at, rank in enumerate((first, second)):
        for b, budget in enumerate(BUDGETS):
            want = [played(stretch, rank, budget, m * budget, "score") for m in MULTIPLES]
            assert got[at, b].tolist() == pytest.approx(want)
    assert got[0].tolist() != got[1].tolist()


def test_a_pool_of_one_selection_misses_the_same_under_every_policy_and_a_larger_one_less() -> None:
    stretch, rank = drifting()
    fresh = moved(stretch, rank, 6)["fresh"]
    lru, score = lru_misses(stretch, rank, 6), score_misses(stretch, rank[None])[0, 0].tolist()
    assert lru[1] == pytest.approx(fresh)
    assert score[0] == pytest.approx(fresh)
    assert lru[1] > lru[2] > lru[3]
    assert score[0] > score[1] >= score[2]


def test_the_runtimes_own_pool_which_goes_by_slot_among_equals_misses_nearly_as_often() -> None:
    stretch, rank = drifting(4)
    selected = stretch.selected(rank, 6)
    lists = np.full((STREAMS, STEPS, 6), -1, np.int32)
    for s, stream in enumerate(selected.tolist()):
        for t, row in enumerate(stream):
            ids = [b for b, taken in enumerate(row) if taken]
            lists[s, t, : len(ids)] = ids
    pool = Pools(streams=STREAMS, slots=12, policy="lru", blocks=rank.shape[2])
    opened = np.where(stretch.opens.any(1), stretch.opens.int().argmax(1), -1)
    misses = [pool.play(lists[:, t], np.full(STREAMS, opened[t])) for t in range(STEPS)]
    real = float(np.sum(misses[WARM:])) / (STREAMS * (STEPS - WARM))
    assert lru_misses(stretch, rank, 6)[2] == pytest.approx(real, rel=0.1)
