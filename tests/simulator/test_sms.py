"""SM slots: who sits where, and what a compute kernel gets beside copies."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda_core.errors import ProfileError
from sparda_core.simulator.profile import Grid
from sparda_core.simulator.sms import Seat, SmPool

H200 = 132
GEMM = Grid(ctas=128, cluster=2)


@pytest.mark.parametrize(
    ("ctas", "cluster", "waves"),
    [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 1, 2), (16, 1, 2), (2, 2, 1), (4, 2, 1), (4, 4, 1), (6, 2, 2)],
)
def test_matrix_products_keep_their_speed_beside_two_tpcs_of_copies_and_no_more(
    ctas: int, cluster: int, waves: int
) -> None:
    """Measured on one H200: two lone copy blocks or two clusters of 2 leave 64 of 66 TPCs whole."""
    pool = SmPool(H200)
    assert len(pool.place(ctas, cluster)) == ctas
    assert pool.copy_sms == ctas
    assert pool.take(GEMM).waves == waves


def test_a_lone_copy_block_takes_a_whole_tpc_and_only_then_half_of_one() -> None:
    pool = SmPool(8)
    assert pool.place(4, 1) == (3, 2, 1, 0)
    assert pool.place(6, 1) == (3, 2, 1, 0)
    assert pool.copy_sms == 8


def test_copies_that_come_while_a_kernel_runs_get_what_it_left() -> None:
    pool = SmPool(8)
    assert pool.take(Grid(ctas=6, cluster=2)) == Seat(1, 6)
    # One TPC is left: two lone blocks share it, and the third waits until the kernel has ended.
    assert pool.place(3, 1) == (3, 3)
    assert (pool.compute_sms, pool.copy_sms) == (6, 2)
    assert pool.seat(Grid(ctas=6, cluster=2)) == Seat(1, 6)
    pool.give()
    assert pool.place(1, 1) == (2,)
    # Two TPCs of four are whole now.
    assert pool.seat(Grid(ctas=6, cluster=2)) == Seat(2, 4)


@pytest.mark.parametrize(("ctas", "waves"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)])
def test_matrix_products_keep_their_speed_beside_four_blocks_that_came_while_one_ran(ctas: int, waves: int) -> None:
    """Measured on one H200: one to four copy blocks cost no wave, eight do."""
    pool = SmPool(H200)
    pool.take(GEMM)
    placed = len(pool.place(ctas, 1))
    pool.give()
    assert len(pool.place(ctas - placed, 1)) == ctas - placed
    assert pool.take(GEMM).waves == waves


def test_a_pair_of_copy_blocks_takes_the_tpc_that_a_kernel_left() -> None:
    pool = SmPool(8)
    pool.take(Grid(ctas=6, cluster=2))
    assert pool.place(2, 2) == (3, 3)


def test_a_lone_block_beside_small_kernels_takes_half_of_a_tpc() -> None:
    pool = SmPool(8)
    pool.take(Grid(ctas=4))
    assert pool.place(5, 1) == (3, 2, 1, 0)


def test_blocks_of_a_cluster_of_one_find_any_free_sm() -> None:
    pool = SmPool(8)
    pool.place(4, 1)
    assert pool.seat(Grid(ctas=4)) == Seat(1, 4)
    assert pool.seat(Grid(ctas=5)) == Seat(2, 4)
    assert pool.seat(Grid(ctas=8, per_sm=2)) == Seat(1, 4)
    assert pool.seat(Grid(ctas=2, cluster=2)) == Seat(0, 0)


def test_a_small_kernel_spreads_over_the_tpcs() -> None:
    pool = SmPool(8)
    pool.take(Grid(ctas=4))
    assert pool.compute_sms == 4
    # No TPC is whole any more: a cluster of 2 must wait, lone blocks sit beside the kernel.
    assert pool.place(2, 2) == ()
    assert pool.place(2, 1) == (3, 2)


def test_a_copy_never_takes_the_last_sm_from_a_kernel_that_must_go_on() -> None:
    pool = SmPool(8)
    assert len(pool.place(8, 1, Grid(ctas=4, cluster=2))) == 3
    pool = SmPool(8)
    assert len(pool.place(8, 1, Grid(ctas=4))) == 7


def test_an_odd_sm_is_a_tpc_of_its_own() -> None:
    pool = SmPool(7)
    assert pool.seat(Grid(ctas=7)) == Seat(1, 7)
    assert pool.seat(Grid(ctas=8, cluster=2)) == Seat(2, 6)


def test_no_sms_are_refused() -> None:
    with pytest.raises(ProfileError, match="sms=0"):
        SmPool(0)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(1, 6), st.sampled_from([1, 2, 4])),
        st.tuples(st.just("kernel"), st.integers(1, 12), st.sampled_from([1, 2])),
        st.tuples(st.just("end"), st.just(0), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
    ),
    max_size=20,
)


class Plain:
    """SMs by name: (TPC, 0 or 1), each free or held by somebody."""

    def __init__(self, sms: int) -> None:
        self.held: dict[tuple[int, int], str] = {(sm // 2, sm % 2): "" for sm in range(sms)}

    def count(self, who: str) -> int:
        return sum(holder == who for holder in self.held.values())

    def give(self, tpc: int, who: str) -> None:
        free = [sm for sm in self.held if sm[0] == tpc and not self.held[sm]]
        assert free, f"TPC {tpc} is full"
        self.held[free[0]] = who

    def back(self, tpc: int) -> None:
        mine = [sm for sm in self.held if sm[0] == tpc and self.held[sm] == "copy"]
        self.held[mine[0]] = ""


@given(moves=moves, sms=st.sampled_from([6, 7, 8]))
def test_no_sm_is_ever_held_twice_and_all_come_back(moves: list[tuple[str, int, int]], sms: int) -> None:
    pool, plain = SmPool(sms), Plain(sms)
    nobody: Hashable = pool.places
    placed: list[tuple[int, ...]] = []
    runs = False
    for what, count, cluster in moves:
        if what == "place":
            tpcs = pool.place(count, cluster)
            for tpc in tpcs:
                plain.give(tpc, "copy")
            placed += [tpcs] if tpcs else []
        elif what == "kernel" and not runs:
            runs = pool.take(Grid(ctas=count, cluster=cluster)).waves > 0
        elif what == "end":
            pool.give()
            runs = False
        elif what == "release" and placed:
            tpcs = placed.pop(count % len(placed))
            pool.release(tpcs)
            for tpc in tpcs:
                plain.back(tpc)
        assert pool.copy_sms == plain.count("copy")
        assert (pool.compute_sms > 0) == runs
        assert pool.copy_sms + pool.compute_sms <= sms
    pool.give()
    for tpcs in placed:
        pool.release(tpcs)
    assert pool.places is nobody
