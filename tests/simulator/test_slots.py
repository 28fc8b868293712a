"""Steps on a machine whose SMs are modelled, by hand: copies start late, kernels run longer on fewer SMs."""

from __future__ import annotations

import attrs
import pytest

from sparda_core.errors import ProfileError
from sparda_core.plan import Lane, Op
from sparda_core.simulator.profile import Grid
from sparda_core.simulator.run import Simulator
from tests.simulator.scenes import plan
from tests.simulator.seats import UNIT, Seats, busy, copy, no_work, ran

#: Two compute operations; a copy that is ready when the step begins.
PAIR = plan(Op(kind="a"), Op(kind="b"), Op(kind="c", lane=Lane.H2D))
#: The copy is ready once `first` has ended, in mid-way of `long`.
LATE = plan(
    Op(kind="first", lane=Lane.HOST), Op(kind="long"), Op(kind="next"), Op(kind="c", lane=Lane.H2D, after=("first",)),
)  # fmt: skip
ALL = Grid(ctas=8, cluster=2)


def test_a_copy_that_finds_no_sm_starts_at_the_next_boundary_between_operations() -> None:
    costs = [busy(100, copies=True, resource="hbm"), busy(1000, grid=ALL), busy(500, grid=ALL), copy(300)]
    got = ran(LATE, costs)
    assert got["c"] == (1000, 1300)
    # One TPC of four is gone: two waves in place of one, but wave_share is 0.
    assert got["next"] == (1000, 1500)


def test_inside_an_operation_of_several_kernels_it_starts_at_the_next_kernel() -> None:
    costs = [busy(100, copies=True, resource="hbm"), busy(1000, grid=ALL, kernels=4), busy(500, grid=ALL), copy(300)]
    assert ran(LATE, costs)["c"] == (250, 550)


def test_a_kernel_that_starts_on_fewer_sms_takes_more_waves() -> None:
    costs = [busy(1000, grid=ALL, wave_share=0.5), busy(1000, grid=ALL, wave_share=0.5), copy(1200)]
    # The copy comes first: three TPCs are left for four clusters, so each kernel takes a second wave, half as long.
    assert ran(PAIR, costs) == {"c": (0, 1200), "a": (0, 1500), "b": (1500, 2500)}


def test_only_the_kernels_that_start_beside_a_copy_take_longer() -> None:
    costs = [
        busy(100, copies=True, resource="hbm"), busy(1000, grid=ALL, kernels=4, wave_share=0.5), busy(1), copy(300),
    ]  # fmt: skip
    # Kernels of 250: the second takes 375 beside the copy, which ends at 550; the other two are alone.
    assert ran(LATE, costs)["long"] == (0, 250 + 375 + 500)


def test_a_kernel_that_leaves_room_delays_no_copy() -> None:
    few = Grid(ctas=6, cluster=2)
    costs = [busy(100, copies=True, resource="hbm"), busy(1000, grid=few), busy(500, grid=few), copy(300)]
    assert ran(LATE, costs)["c"] == (100, 400)


def test_blocks_are_placed_one_by_one_and_each_brings_its_rate() -> None:
    few = Grid(ctas=6, cluster=2)
    caps = [(0.25, 0.25), (0.5, 0.5), (1.0, 1.0)]
    costs = [busy(100, copies=True, resource="hbm"), busy(900, grid=few), busy(900, grid=few), copy(1000, 3, caps=caps)]
    # Two of three take the free TPC at 100 and move 0.5 a nanosecond; from 900 on, with the third, it is 1.
    assert ran(LATE, costs)["c"] == (100, 900 + (1000 - 400))


def test_blocks_that_an_sm_has_room_for_share_it_where_others_are_taken() -> None:
    caps = [(number / 8, number / 8) for number in range(1, 9)]
    full, few = Grid(ctas=8, cluster=2), Grid(ctas=6, cluster=2)
    for per_sm, grid, span in ((1, few, (100, 900 + 1000 - 200)), (4, few, (100, 1100)), (4, full, (900, 1900))):
        many = copy(1000, 8, caps=caps)
        assert many.grid is not None
        many = attrs.evolve(many, grid=attrs.evolve(many.grid, per_sm=per_sm))
        costs = [busy(100, copies=True, resource="hbm"), busy(900, grid=grid), busy(2000, grid=Grid(ctas=1)), many]
        assert ran(LATE, costs)["c"] == span, (per_sm, grid)


def test_a_copy_is_slower_beside_compute_launch_gaps_included_and_faster_once_compute_waits() -> None:
    made = plan(
        Op(kind="a"), Op(kind="c", lane=Lane.H2D), Op(kind="slow", lane=Lane.HOST), Op(kind="b", after=("slow",)),
    )  # fmt: skip
    costs = [
        busy(100, launch_s=100e-9), copy(1000, caps=[(1.0, 0.5)]), busy(400, copies=True, resource="host"), busy(100),
    ]  # fmt: skip
    # At work until 200 (its launch gap too), waits until 400, at work until 500: 100 + 200 + 50 moved by then.
    assert ran(made, costs)["c"] == (0, 500 + 650)


def test_a_copy_that_came_while_a_kernel_ran_keeps_the_rate_of_the_sms_that_were_left() -> None:
    few = Grid(ctas=6, cluster=2)
    late = attrs.evolve(copy(1000, caps=[(1.0, 0.5)]), late_caps=(0.25 * UNIT,))
    kernels = [busy(900, grid=few), busy(900, grid=few)]
    # Beside compute until 1800; what is left goes at the rate alone.
    assert ran(LATE, [busy(100, copies=True, resource="hbm"), *kernels, late])["c"] == (100, 1800 + (1000 - 425))
    # There first, it has the other rate beside the same kernels, and so it has where a kernel's end let it in.
    assert ran(PAIR, [*kernels, late])["c"] == (0, 1800 + (1000 - 900))
    full = [busy(900, grid=ALL), busy(900, grid=few)]
    assert ran(LATE, [busy(100, copies=True, resource="hbm"), *full, late])["c"] == (900, 1800 + (1000 - 450))


def test_a_compute_kernel_waits_where_copies_hold_every_sm() -> None:
    got = ran(PAIR, [busy(100, grid=ALL), busy(100, grid=Grid(ctas=1)), copy(700, 8)])
    assert got == {"c": (0, 700), "a": (700, 800), "b": (800, 900)}


def test_copies_that_were_ready_first_are_placed_first() -> None:
    made = plan(Op(kind="a"), Op(kind="d", lane=Lane.D2H), Op(kind="c", lane=Lane.H2D))
    both = copy(100, 8)
    costs = [busy(100, grid=ALL), attrs.evolve(both, launch_s=2e-9), attrs.evolve(both, launch_s=1e-9)]
    got = ran(made, costs)
    assert (got["a"], got["c"], got["d"]) == ((0, 100), (100, 200), (200, 300))


def test_without_sms_a_grid_means_nothing() -> None:
    costs = [busy(1000, grid=ALL, wave_share=0.5), busy(1000, grid=ALL), copy(1200, 3, caps=[(0.1, 0.1)] * 3)]
    assert ran(PAIR, costs, Seats(slots=0)) == {"a": (0, 1000), "b": (1000, 2000), "c": (0, 1200)}


def test_an_observer_sees_how_many_sms_each_side_holds() -> None:
    seen: dict[int, tuple[float, float]] = {}
    costs = [busy(100, copies=True, resource="hbm"), busy(1000, grid=Grid(ctas=6, cluster=2)), busy(1), copy(300, 2)]
    simulator = Simulator(LATE, no_work, Seats())
    simulator.run(
        simulator.ready(costs), lambda now_ns, told: seen.update({now_ns: (told["sms_compute"], told["sms_copy"])})
    )
    assert seen == {0: (6, 0), 100: (6, 2), 400: (6, 0), 1000: (0, 0), 1001: (0, 0)}


@pytest.mark.parametrize(
    ("price", "says"),
    [
        (busy(1, grid=Grid(ctas=2, cluster=10)), "never finds a place"),
        (copy(1, 2, cluster=10), "never finds a place"),
        (copy(1, 3, caps=[(1.0, 1.0)]), "copy_caps has 1 entries for a copy kernel of 3"),
        (attrs.evolve(copy(1), late_caps=(1.0,)), "late_caps without copy_caps"),
        (busy(1, grid=Grid(ctas=0)), "must be >= 1"),
        (busy(1, grid=ALL, kernels=0), "must be >= 1"),
    ],
)
def test_a_grid_that_could_never_run_is_refused(price: object, says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        ran(plan(Op(kind="a")), [price])  # type: ignore[list-item]


def test_a_step_that_was_broken_off_leaves_no_sm_held() -> None:
    simulator = Simulator(LATE, no_work, Seats())
    bill = simulator.ready([busy(100, copies=True, resource="hbm"), busy(1000, grid=ALL), busy(1), copy(300)])

    def breaks(now_ns: int, _: object) -> None:
        if now_ns:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulator.run(bill, breaks)
    assert simulator.run(bill).long_ns == 1300
