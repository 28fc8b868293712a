from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparda_core.errors import CapacityError, ConfigError, RowError
from sparda_core.kernels.diff import cpu, reference
from sparda_core.kernels.diff.result import Diff, Slots
from sparda_core.policy import POLICIES
from sparda_core.runtimes.slot_pool import SlotPool
from tests.profiles import share

HEADS, BLOCK, DIM = 2, 4, 2
NONE = -1


def make_pool(slots: int, policy: str) -> SlotPool:
    return SlotPool(kv_heads=HEADS, slots=slots, block=BLOCK, head_dim=DIM, dtype=np.float64, policy=policy)


def selection_of(*rows: list[list[int]], width: int) -> npt.NDArray[np.int32]:
    """[B, Hk, width] from lists of blocks a (row, head)."""
    padded = [[sorted(head) + [NONE] * (width - len(head)) for head in row] for row in rows]
    return np.array(padded, np.int32)


def content(row: int, head: int, block: int) -> float:
    return row * 1000.0 + head * 100 + block


class PoolAgreesWithLists(RuleBasedStateMachine):
    """For each (row, head) a list of (block, tick) pairs, and the set of blocks transferred but not read."""

    @initialize(slots=st.integers(3, 6), policy=st.sampled_from(["last-selection", "lru"]))
    def start(self, slots: int, policy: str) -> None:
        self.slots, self.policy, self.tick, self.made = slots, policy, 0, 0
        self.pool = make_pool(slots, policy)
        self.held: dict[int, list[dict[int, int]]] = {}
        self.unread: dict[int, list[set[int]]] = {}

    def row(self, pick: int) -> int:
        return sorted(self.held)[pick % len(self.held)]

    @rule()
    def add(self) -> None:
        self.made += 1
        self.pool.add(self.made)
        self.held[self.made] = [{} for _ in range(HEADS)]
        self.unread[self.made] = [set() for _ in range(HEADS)]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), read=st.booleans())
    def step(self, data: st.DataObject, *, read: bool) -> None:
        rows = data.draw(st.permutations(sorted(self.held)))
        chosen = st.lists(st.integers(0, 9), max_size=3, unique=True)
        wanted = [[data.draw(chosen) for _ in range(HEADS)] for _ in rows]
        opened = [data.draw(st.integers(NONE, 9)) for _ in rows]
        self.tick += 1
        diff = self.pool.diff(rows, selection_of(*wanted, width=3), np.array(opened), self.tick)
        missing: list[tuple[int, int, int]] = []
        for b, row in enumerate(rows):
            for h in range(HEADS):
                new, dropped = self.expect(row, h, wanted[b][h])
                moved = [block for block in new if block != opened[b]]
                missing += [(b, h, block) for block in sorted(moved)]
                assert diff.misses[b, h] == len(moved)
                assert diff.opened[b, h] == (opened[b] in wanted[b][h])
                assert diff.wasted[b, h] == len(self.unread[row][h] & dropped)
                self.unread[row][h] = (self.unread[row][h] - dropped) | set(moved)
        listed = zip(diff.miss_rows.tolist(), diff.miss_heads.tolist(), diff.miss_blocks.tolist(), strict=True)
        assert list(listed) == missing
        self.fetch(rows, diff)
        self.selected_blocks_are_where_the_diff_says(rows, wanted, opened, diff)
        if read:
            self.pool.mark_read(diff.physical)
            for b, row in enumerate(rows):
                for h in range(HEADS):
                    self.unread[row][h] -= set(wanted[b][h])

    def expect(self, row: int, head: int, wanted: list[int]) -> tuple[set[int], set[int]]:
        """Blocks that need a slot, and blocks that lose theirs."""
        held = self.held[row][head]
        new = set(wanted) - set(held)
        if not wanted:
            return set(), set()
        others = sorted(set(held) - set(wanted), key=lambda block: (held[block], self.slot(row, head, block)))
        short = len(held) + len(new) - self.slots
        dropped = set(others if self.policy == "last-selection" else others[: max(0, short)])
        self.held[row][head] = {b: t for b, t in held.items() if b not in dropped} | dict.fromkeys(wanted, self.tick)
        return new, dropped

    def slot(self, row: int, head: int, block: int) -> int:
        """Slot of a block before the step, needed for ties only."""
        slots: list[int] = self.snapshot[row][head]
        return slots.index(block)

    def fetch(self, rows: list[int], diff: Diff) -> None:
        for b, h, block, slot in zip(diff.miss_rows, diff.miss_heads, diff.miss_blocks, diff.miss_slots, strict=True):
            self.pool.array[slot] = content(rows[b], h, block)

    def selected_blocks_are_where_the_diff_says(
        self, rows: list[int], wanted: list[list[list[int]]], opened: list[int], diff: Diff
    ) -> None:
        for b, row in enumerate(rows):
            for h in range(HEADS):
                blocks = sorted(wanted[b][h])
                places = diff.physical[b, h]
                assert (places[len(blocks) :] == NONE).all()
                for block, place in zip(blocks, places, strict=False):
                    if block == opened[b]:
                        self.pool.array[place] = content(row, h, block)
                    assert (self.pool.array[place] == content(row, h, block)).all()
                found = self.pool.slot_of(row, np.array(blocks, np.int64))[h]
                assert found.tolist() == places[: len(blocks)].tolist()

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 9))
    def fork(self, pick: int) -> None:
        self.made += 1
        row = self.row(pick)
        self.pool.fork(row, self.made)
        self.held[self.made] = [dict(head) for head in self.held[row]]
        self.unread[self.made] = [set() for _ in range(HEADS)]
        for h in range(HEADS):
            blocks = np.array(sorted(self.held[row][h]), np.int64)
            origin, copy = self.pool.slot_of(row, blocks)[h], self.pool.slot_of(self.made, blocks)[h]
            np.testing.assert_array_equal(self.pool.array[copy], self.pool.array[origin])
            for block, place in zip(blocks.tolist(), copy.tolist(), strict=True):
                self.pool.array[place] = content(self.made, h, block)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 9), tokens=st.integers(0, 40))
    def crop(self, pick: int, tokens: int) -> None:
        row = self.row(pick)
        self.pool.crop(row, tokens)
        for h in range(HEADS):
            self.held[row][h] = {b: t for b, t in self.held[row][h].items() if b * BLOCK < tokens}
            self.unread[row][h] &= set(self.held[row][h])

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 9))
    def retire(self, pick: int) -> None:
        row = self.row(pick)
        self.pool.retire(row)
        del self.held[row], self.unread[row]
        with pytest.raises(RowError):
            self.pool.resident(row)

    @rule(slots=st.integers(3, 6))
    def resize(self, slots: int) -> None:
        for row, heads in self.held.items():
            for h, held in enumerate(heads):
                by_age = sorted(held, key=lambda block: (-held[block], self.slot(row, h, block)))
                self.held[row][h] = {block: held[block] for block in by_age[:slots]}
                self.unread[row][h] &= set(by_age[:slots])
        self.pool.resize(slots)
        self.slots = slots

    @invariant()
    def the_pool_holds_exactly_the_blocks_of_the_model_each_once(self) -> None:
        if not hasattr(self, "held"):
            return
        self.snapshot = {row: self.pool.resident(row).tolist() for row in self.held}
        for row, heads in self.snapshot.items():
            for h, slots in enumerate(heads):
                blocks = [block for block in slots if block != NONE]
                assert len(slots) == self.slots
                assert sorted(blocks) == sorted(self.held[row][h])
                places = self.pool.slot_of(row, np.array(blocks, np.int64))[h]
                for block, place in zip(blocks, places, strict=True):
                    assert (self.pool.array[place] == content(row, h, block)).all()


TestPoolAgreesWithLists = PoolAgreesWithLists.TestCase
TestPoolAgreesWithLists.settings = settings(max_examples=share(60), stateful_step_count=25, deadline=None)


@st.composite
def diff_inputs(draw: st.DrawFn) -> tuple[Slots, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Lawful tables and a selection of any shape."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    places, heads = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3, 5]))
    width = draw(st.integers(1, 7))
    slots = width + draw(st.integers(0, 5))
    batch = draw(st.integers(0, places))
    blocks = slots + draw(st.integers(0, 8))
    held = np.full((places, heads, slots), NONE, np.int64)
    selection = np.full((batch, heads, width), NONE, np.int32)
    for at in np.ndindex(places, heads):
        n = rng.integers(0, slots + 1)
        held[at][rng.permutation(slots)[:n]] = rng.permutation(blocks)[:n]
    for at in np.ndindex(batch, heads):
        n = rng.integers(0, width + 1)
        selection[at][:n] = np.sort(rng.permutation(blocks)[:n])
    used = rng.integers(0, 3, held.shape)
    unread = (rng.random(held.shape) < 0.5) & (held >= 0)
    order = rng.permutation(places)[:batch].astype(np.int64)
    return Slots(held=held, used=used, unread=unread), order, selection, rng.integers(-1, blocks, batch)


def scores_of(seed: int, batch: int, heads: int) -> npt.NDArray[np.float32]:
    """Scores of the first blocks, with ties and every special value."""
    rng = np.random.default_rng(seed)
    values = np.array([-np.inf, -1.0, -0.0, 0.0, 2.5, np.inf, np.nan], np.float32)
    return rng.choice(values, (batch, heads, int(rng.integers(0, 14))))


def copied(slots: Slots) -> Slots:
    return attrs.evolve(slots, **{f.name: getattr(slots, f.name).copy() for f in attrs.fields(Slots)})


@settings(max_examples=share(200), deadline=None)
@given(inputs=diff_inputs(), policy=st.sampled_from(POLICIES), seed=st.integers(0, 2**31))
def test_the_compiled_diff_equals_the_reference_in_every_array_and_table(
    *, inputs: tuple[Slots, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]], policy: str, seed: int
) -> None:
    slots, places, selection, opened = inputs
    scores = scores_of(seed, *selection.shape[:2])
    fast, plain = copied(slots), copied(slots)
    got = cpu.diff_slots(fast, places, selection, opened, tick=9, policy=policy, scores=scores)
    want = reference.diff_slots(plain, places, selection, opened, tick=9, policy=policy, scores=scores)
    for name, array in want.fields().items():
        np.testing.assert_array_equal(getattr(got, name), array, err_msg=name)
        assert getattr(got, name).dtype == np.int64, name
    live = plain.held >= 0
    np.testing.assert_array_equal(fast.held, plain.held)
    np.testing.assert_array_equal(fast.used[live], plain.used[live])
    np.testing.assert_array_equal(fast.unread[live], plain.unread[live])


@settings(max_examples=share(100), deadline=None)
@given(inputs=diff_inputs(), policy=st.sampled_from(POLICIES), seed=st.integers(0, 2**31))
def test_hits_and_misses_add_up_to_the_selection_and_no_slot_is_given_twice(
    *, inputs: tuple[Slots, npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]], policy: str, seed: int
) -> None:
    slots, places, selection, opened = inputs
    scores = scores_of(seed, *selection.shape[:2])
    before = copied(slots)
    diff = cpu.diff_slots(slots, places, selection, opened, tick=9, policy=policy, scores=scores)
    chosen = diff.physical[diff.physical >= 0]
    assert len(set(chosen.tolist())) == chosen.size == (selection >= 0).sum()
    np.testing.assert_array_equal(slots.held.reshape(-1)[chosen], selection[selection >= 0])
    hit = (selection[..., None] == before.held[places][:, :, None]).any(-1) & (selection >= 0)
    own = (selection == opened[:, None, None]) & (selection >= 0)
    np.testing.assert_array_equal(diff.misses, ((selection >= 0) & ~hit & ~own).sum(-1))
    np.testing.assert_array_equal(diff.opened, own.sum(-1))
    assert diff.misses.sum() == diff.miss_rows.size == len(set(diff.miss_slots.tolist()))


def one_step(pool: SlotPool, blocks: list[int], tick: int, opened: int = NONE) -> Diff:
    return pool.diff((1,), selection_of([blocks] * HEADS, width=len(blocks)), np.array([opened]), tick)


def test_last_selection_keeps_nothing_but_the_selection_however_many_slots_there_are() -> None:
    pool = make_pool(6, "last-selection")
    pool.add(1)
    one_step(pool, [0, 1, 2], tick=1)
    one_step(pool, [0, 3], tick=2)
    assert one_step(pool, [0, 1], tick=3).misses.tolist() == [[1] * HEADS]


def test_score_drops_the_block_that_ranks_last_now_and_ties_go_to_the_lower_slot() -> None:
    pool = make_pool(4, "score")
    pool.add(1)
    ranks = np.tile([5.0, 1.0, np.nan, 1.0, 9.0, 0.0], (1, HEADS, 1))

    def step(blocks: list[int], tick: int) -> list[int]:
        pool.diff((1,), selection_of([blocks] * HEADS, width=len(blocks)), np.array([NONE]), tick, ranks)
        return [int(block) for block in pool.resident(1)[0]]

    assert step([0, 1, 3], tick=1) == [0, 1, 3, NONE]
    assert step([6], tick=2) == [0, 1, 3, 6], "an empty slot first"
    assert step([4], tick=3) == [0, 1, 3, 4], "a block without a score next, although it was selected last"
    assert step([2], tick=4) == [0, 2, 3, 4], "of equal scores the lower slot"
    assert step([1, 5], tick=5) == [0, 1, 5, 4]
    with pytest.raises(ConfigError, match="needs the scores"):
        one_step(pool, [0], tick=6)


def test_lru_drops_the_least_recently_selected_block_and_ties_go_to_the_lower_slot() -> None:
    pool = make_pool(3, "lru")
    pool.add(1)
    one_step(pool, [4, 5], tick=1)
    one_step(pool, [6], tick=2)
    one_step(pool, [7], tick=3)
    assert pool.resident(1)[0].tolist() == [7, 5, 6]


def test_a_row_that_selects_nothing_keeps_its_blocks() -> None:
    pool = make_pool(4, "last-selection")
    pool.add(1)
    one_step(pool, [0, 1], tick=1)
    idle = one_step(pool, [NONE, NONE], tick=2)
    assert not idle.misses.any()
    assert (idle.physical == NONE).all()
    assert not one_step(pool, [0, 1], tick=3).misses.any()


def test_one_block_can_be_admitted_without_dropping_the_selection() -> None:
    pool = make_pool(3, "last-selection")
    pool.add(1)
    one_step(pool, [0, 1], tick=1)
    diff = pool.admit(1, 7, tick=1)
    assert (diff.miss_blocks.tolist(), diff.misses.tolist()) == ([7] * HEADS, [[1] * HEADS])
    assert pool.resident(1)[0].tolist() == [0, 1, 7]
    assert not pool.admit(1, 7, tick=1).misses.any()
    pool.admit(1, 8, tick=2)
    assert pool.resident(1)[0].tolist() == [8, 1, 7]


def test_a_block_opened_by_this_token_gets_a_slot_without_a_transfer() -> None:
    pool = make_pool(4, "lru")
    pool.add(1)
    diff = one_step(pool, [0, 3], tick=1, opened=3)
    assert diff.miss_blocks.tolist() == [0] * HEADS
    assert diff.opened.tolist() == [[1] * HEADS]
    assert (diff.physical >= 0).all()


def test_a_transfer_dropped_unread_is_wasted_once() -> None:
    pool = make_pool(2, "last-selection")
    pool.add(1)
    one_step(pool, [0, 1], tick=1)
    assert one_step(pool, [2], tick=2).wasted.tolist() == [[2] * HEADS]
    read = one_step(pool, [3], tick=3)
    assert read.wasted.tolist() == [[1] * HEADS]
    pool.mark_read(read.physical)
    assert not one_step(pool, [4], tick=4).wasted.any()


@pytest.mark.parametrize("blocks", [[1, 0], [0, 0], [NONE, 1]])
def test_an_unlawful_selection_is_refused_and_changes_nothing(blocks: list[int]) -> None:
    pool = make_pool(3, "last-selection")
    pool.add(1)
    one_step(pool, [5, 6], tick=1)
    with pytest.raises(ConfigError, match="ascending"):
        pool.diff((1,), np.array([[[5, 6], blocks]], np.int32), np.array([NONE]), 2)
    assert sorted(pool.resident(1)[0].tolist()) == [NONE, 5, 6]


def test_a_selection_wider_than_the_slots_is_refused_and_changes_nothing() -> None:
    pool = make_pool(2, "lru")
    pool.add(1)
    one_step(pool, [5, 6], tick=1)
    with pytest.raises(CapacityError, match="needs 3 blocks per KV head but has 2 free"):
        one_step(pool, [0, 1, 2], tick=2)
    assert pool.resident(1)[0].tolist() == [5, 6]


def test_no_memory_for_another_row_leaves_the_pool_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(2, "lru")
    pool.add(1)
    one_step(pool, [5, 6], tick=1)

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", no_memory)
        with pytest.raises(CapacityError, match="memory is full"):
            pool.add(2)
        with pytest.raises(CapacityError, match="memory is full"):
            pool.fork(1, 2)
        with pytest.raises(CapacityError, match="memory is full"):
            pool.resize(5)
    assert (pool.rows, pool.slots, pool.resident(1)[0].tolist()) == ((1,), 2, [5, 6])


def test_positions_of_several_rows_are_found_in_their_slots() -> None:
    pool = make_pool(3, "lru")
    pool.add(1)
    pool.add(2)
    pool.diff((2, 1), selection_of([[0, 2]] * HEADS, [[1]] * HEADS, width=2), np.array([NONE, NONE]), 1)
    found = pool.physical_at((1, 2), np.array([[BLOCK], [2 * BLOCK + 1]]))
    np.testing.assert_array_equal(found[0, :, 0], pool.slot_of(1, np.array([1]))[:, 0])
    np.testing.assert_array_equal(found[1, :, 0], pool.slot_of(2, np.array([2]))[:, 0])
    assert (pool.physical_at((1, 2), np.array([[-1], [BLOCK]])) == NONE).all()


@pytest.mark.parametrize(("name", "options"), [("policy='fifo'", {"policy": "fifo"}), ("slots=0", {"slots": 0})])
def test_bad_options_are_refused_by_name_and_value(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=name):
        SlotPool(**{"kv_heads": 1, "slots": 2, "block": 4, "head_dim": 2, **options})  # type: ignore[arg-type]
