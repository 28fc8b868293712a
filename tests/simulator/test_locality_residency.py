from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.policy import POLICIES as ALL_POLICIES
from sparda_core.runtimes.slot_pool import SlotPool
from sparda_core.shapes import BlockSpec
from sparda_core.simulator.residency import POLICIES, Pools, check_pool
from tests.profiles import share

ROWS, HEADS, WIDTH, BLOCKS = 3, 2, 4, 14
NOTHING = np.array([-1])


def choices(draw: st.DrawFn) -> list[int]:
    return sorted(draw(st.lists(st.integers(0, BLOCKS - 1), max_size=WIDTH, unique=True)))


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, str, npt.NDArray[np.int32]]:
    """Slots, policy, and selections int32 [steps, rows, heads, width]."""
    slots, policy = draw(st.integers(WIDTH, 9)), draw(st.sampled_from(POLICIES))
    steps = draw(st.integers(1, 12))
    ids = np.full((steps, ROWS, HEADS, WIDTH), -1, np.int32)
    for at in np.ndindex(steps, ROWS, HEADS):
        chosen = choices(draw)
        ids[at][: len(chosen)] = chosen
    return slots, policy, ids


def make_pool(slots: int, policy: str) -> SlotPool:
    pool = SlotPool(kv_heads=HEADS, slots=slots, block=2, head_dim=2, policy=policy)
    for row in range(ROWS):
        pool.add(row)
    return pool


def test_every_policy_of_the_runtimes_can_be_played_but_the_one_that_needs_scores() -> None:
    assert set(ALL_POLICIES) - set(POLICIES) == {"score"}
    with pytest.raises(ConfigError, match=r"neither a locality nor a recording .* holds scores: predict from facts"):
        check_pool(slots=16, policy="score", spec=BlockSpec(budget=16))


@settings(deadline=None, max_examples=share(60))
@given(run=runs(), tails=st.none() | st.integers(0, BLOCKS - 1))
def test_blocks_sit_in_the_slots_in_which_the_runtimes_pool_has_them(
    run: tuple[int, str, npt.NDArray[np.int32]], tails: int | None
) -> None:
    slots, policy, ids = run
    real = make_pool(slots, policy)
    ours = Pools(streams=ROWS * HEADS, slots=slots, policy=policy, blocks=1)
    ours.reach(BLOCKS)
    if tails is not None:
        for row in range(ROWS):
            real.admit(row, tails, tick=0)
        ours.admit(np.arange(ROWS * HEADS), np.full(ROWS * HEADS, tails))
    for step, chosen in enumerate(ids, start=1):
        opened = np.arange(step, step + ROWS) % BLOCKS
        diff = real.diff(range(ROWS), chosen, opened, tick=step)
        missed = ours.play(chosen.reshape(ROWS * HEADS, WIDTH), np.repeat(opened, HEADS))
        np.testing.assert_array_equal(missed.reshape(ROWS, HEADS), diff.misses)
        held = ours.held.reshape(ROWS, HEADS, slots)
        for row in range(ROWS):
            np.testing.assert_array_equal(held[row], real.resident(row))


def test_the_comparison_would_notice_another_policy() -> None:
    ours = Pools(streams=HEADS, slots=3, policy="last-selection", blocks=BLOCKS)
    real = SlotPool(kv_heads=HEADS, slots=3, block=2, head_dim=2, policy="lru")
    real.add(0)
    missed = []
    for step, block in enumerate((0, 1, 0), start=1):
        chosen = np.full((1, HEADS, 1), block, np.int32)
        real_misses = real.diff((0,), chosen, np.array([-1]), tick=step).misses
        missed.append((int(ours.play(chosen[0], np.full(HEADS, -1))[0]), int(real_misses[0, 0])))
    assert missed == [(1, 1), (1, 1), (1, 0)]


@settings(deadline=None, max_examples=share(60))
@given(
    ids=st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=60), slots=st.integers(1, 8), more=st.integers(1, 5)
)
def test_under_lru_more_slots_never_miss_what_fewer_hold(ids: list[int], slots: int, more: int) -> None:
    """One block a step, so that no two are equally old: ties go by slot, which depends on how many there are."""
    few, many = (Pools(streams=1, slots=n, policy="lru", blocks=BLOCKS) for n in (slots, slots + more))
    for block in ids:
        chosen = np.array([[block]], np.int32)
        assert many.play(chosen, NOTHING)[0] <= few.play(chosen, NOTHING)[0]
        assert set(few.held[0].tolist()) - {-1} <= set(many.held[0].tolist())


def test_a_warm_pool_holds_the_selection_and_what_was_dropped_last() -> None:
    selection, stack = np.array([[1, 5]], np.int32), np.array([[7, 3, 0]], np.int32)
    lru = Pools(streams=1, slots=4, policy="lru", blocks=9)
    lru.warm(selection, stack)
    assert lru.held.tolist() == [[1, 5, 7, 3]]
    assert lru.play(np.array([[3, 6]], np.int32), NOTHING).tolist() == [1]
    assert lru.held.tolist() == [[1, 5, 6, 3]], "the one dropped longest ago went first"
    last = Pools(streams=1, slots=4, policy="last-selection", blocks=9)
    last.warm(selection, stack)
    assert last.held.tolist() == [[1, 5, -1, -1]]


def test_too_few_slots_and_unknown_policies_are_refused_with_a_way_out() -> None:
    spec = BlockSpec(budget=16)
    with pytest.raises(ConfigError, match=r"slots=15 must be >= budget=16"):
        check_pool(slots=15, policy="lru", spec=spec)
    with pytest.raises(UnknownNameError, match="did you mean 'lru'"):
        check_pool(slots=16, policy="lruu", spec=spec)
