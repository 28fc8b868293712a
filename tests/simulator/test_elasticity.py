"""Waves: what copy CTAs leave of a device, and how many rounds a grid takes on it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.simulator.profile import Grid
from sparda_core.simulator.sms import SmPool
from tests.simulator.elasticity import Free, free_beside, slowdown, waves

PRODUCT = Grid(ctas=128, cluster=2)
grids = st.builds(Grid, ctas=st.integers(1, 600), cluster=st.sampled_from([1, 2, 4]), per_sm=st.integers(1, 3))


@pytest.mark.parametrize(
    ("ctas", "cluster", "sms", "pairs"),
    [(0, 1, 132, 66), (2, 1, 130, 64), (66, 1, 66, 0), (70, 1, 62, 0), (2, 2, 130, 65), (4, 2, 128, 64),
     (4, 4, 128, 64), (6, 6, 126, 63), (8, 2, 124, 62), (3, 2, 129, 64)],
)  # fmt: skip
def test_lone_ctas_take_a_pair_of_sms_each_and_clusters_fill_theirs(
    ctas: int, cluster: int, sms: int, pairs: int
) -> None:
    assert free_beside(132, ctas, cluster) == Free(sms=sms, pairs=pairs)


def test_a_product_of_64_pairs_keeps_its_wave_beside_two_ctas_and_loses_it_to_three() -> None:
    held = [slowdown(PRODUCT, 132, ctas, 1, 0.5) for ctas in (0, 1, 2, 3, 4, 16, 34, 35)]
    assert held == [1, 1, 1, 1.5, 1.5, 1.5, 1.5, 2]
    assert slowdown(PRODUCT, 132, 4, 2, 0.5) == 1
    assert slowdown(PRODUCT, 132, 6, 6, 0.5) == 1.5


def test_a_grid_that_finds_no_place_never_ends() -> None:
    assert waves(PRODUCT, free_beside(132, 66)) == math.inf
    assert waves(Grid(ctas=4, cluster=4), Free(sms=4, pairs=1)) == math.inf
    assert waves(Grid(ctas=300, per_sm=2), Free(sms=100, pairs=0)) == 2


@given(grid=grids, ctas=st.integers(0, 60), cluster=st.sampled_from([1, 2, 4]), share=st.floats(0, 2))
def test_more_held_sms_never_speed_a_grid_up(grid: Grid, ctas: int, cluster: int, share: float) -> None:
    here, more = (slowdown(grid, 132, n, cluster, share) for n in (ctas, ctas + cluster))
    assert 1 <= here <= more


@given(grid=grids, ctas=st.integers(0, 60), cluster=st.sampled_from([1, 2, 4]))
def test_the_account_is_that_of_the_engine_where_copies_were_there_first(grid: Grid, ctas: int, cluster: int) -> None:
    whole = ctas // cluster * cluster
    pool = SmPool(132)
    assert len(pool.place(whole, cluster)) == whole
    seat = pool.seat(grid).waves
    assert (seat or math.inf) == waves(grid, free_beside(132, whole, cluster))
