from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparda_core.errors import CapacityError, ConfigError, RowError
from sparda_core.runtimes.block_store import BlockStore
from tests.profiles import share

LAYERS, HEADS, BLOCK, DIM, PAGE_BLOCKS = (3, 5), 2, 4, 2, 2
PAGE_TOKENS = BLOCK * PAGE_BLOCKS
PAGE_BYTES = PAGE_TOKENS * 2 * DIM * 8


def make_store(limit_pages: int | None = None) -> BlockStore:
    return BlockStore(
        layers=LAYERS, kv_heads=HEADS, block=BLOCK, head_dim=DIM, dtype=np.float64, page_blocks=PAGE_BLOCKS,
        limit_bytes=None if limit_pages is None else limit_pages * PAGE_BYTES,
    )  # fmt: skip


def value(token: float, layer: int, head: int) -> float:
    return token * 100 + layer * 10 + head


def write(store: BlockStore, row: int, tokens: list[float]) -> None:
    """Append tokens the way a kernel does: through `physical_at`, then `set_length`."""
    start = store.length(row)
    store.reserve(row, start + len(tokens))
    positions = np.arange(start, start + len(tokens))
    for layer in LAYERS:
        blocks = store.physical_at(layer, (row,), positions[None])[0]
        for head in range(HEADS):
            for position, token, block in zip(positions, tokens, blocks[head], strict=True):
                store.array[block, 0, position % BLOCK] = value(token, layer, head)
                store.array[block, 1, position % BLOCK] = -value(token, layer, head)
    store.set_length(row, start + len(tokens))


def assert_holds(store: BlockStore, row: int, tokens: list[float]) -> None:
    assert store.length(row) == len(tokens)
    for layer in LAYERS:
        keys, values = store.read(layer, row, 0, len(tokens))
        want = np.array([[value(token, layer, head) for token in tokens] for head in range(HEADS)])
        np.testing.assert_array_equal(keys, np.repeat(want[..., None], DIM, -1).reshape(HEADS, len(tokens), DIM))
        np.testing.assert_array_equal(values, -keys)


class StoreAgreesWithLists(RuleBasedStateMachine):
    """A list of token numbers for each row judges the paged store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = make_store(limit_pages=40)
        self.model: dict[int, list[float]] = {}
        self.made = 0

    def row(self, pick: int) -> int:
        return sorted(self.model)[pick % len(self.model)]

    def new_id(self) -> int:
        self.made += 1
        return self.made * 7

    @rule()
    def add(self) -> None:
        row = self.new_id()
        self.store.add(row)
        self.model[row] = []

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 9), count=st.integers(1, 20))
    def append(self, pick: int, count: int) -> None:
        row = self.row(pick)
        tokens = [float(self.made * 1000 + len(self.model[row]) + i) for i in range(count)]
        self.made += 1
        before = self.store.used_bytes
        try:
            write(self.store, row, tokens)
        except CapacityError:
            assert self.store.used_bytes == before
        else:
            self.model[row] += tokens

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 9))
    def fork(self, pick: int) -> None:
        before, row, copy = self.store.used_bytes, self.row(pick), self.new_id()
        self.store.fork(row, copy)
        self.model[copy] = list(self.model[row])
        assert self.store.used_bytes == before

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 9), percent=st.integers(0, 100))
    def crop(self, pick: int, percent: int) -> None:
        row = self.row(pick)
        keep = len(self.model[row]) * percent // 100
        self.store.crop(row, keep)
        del self.model[row][keep:]

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 9), more=st.integers(0, 20))
    def reserve_without_writing(self, pick: int, more: int) -> None:
        row = self.row(pick)
        before = self.store.used_bytes
        try:
            self.store.reserve(row, len(self.model[row]) + more)
        except CapacityError:
            assert self.store.used_bytes == before

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 9))
    def retire(self, pick: int) -> None:
        row = self.row(pick)
        self.store.retire(row)
        del self.model[row]
        with pytest.raises(RowError, match=f"row={row}"):
            self.store.length(row)

    @invariant()
    def every_row_reads_back_what_was_written(self) -> None:
        assert sorted(self.store.rows) == sorted(self.model)
        for row, tokens in self.model.items():
            assert_holds(self.store, row, tokens)

    @invariant()
    def the_limit_holds_and_no_page_is_lost(self) -> None:
        pool = self.store._pool
        assert self.store.used_bytes <= 40 * PAGE_BYTES
        held = [
            page
            for row in self.model
            for layer in LAYERS
            for page in (self.store.physical(layer, row)[:, ::PAGE_BLOCKS] // PAGE_BLOCKS).ravel().tolist()
        ]
        np.testing.assert_array_equal(np.bincount(held, minlength=pool.pages) if held else 0, pool._references)
        assert self.store.used_bytes == len(set(held)) * PAGE_BYTES
        assert sorted([*set(held), *pool._free]) == list(range(pool.pages))

    def teardown(self) -> None:
        for row in list(self.model):
            self.store.retire(row)
        assert self.store.used_bytes == 0


TestStoreAgreesWithLists = StoreAgreesWithLists.TestCase
TestStoreAgreesWithLists.settings = settings(max_examples=share(40), stateful_step_count=25, deadline=None)


def filled(count: int, limit_pages: int | None = None) -> BlockStore:
    store = make_store(limit_pages)
    store.add(1)
    write(store, 1, [float(i) for i in range(count)])
    return store


def test_nothing_is_reserved_for_a_length_nobody_reached() -> None:
    store = filled(1)
    assert store.used_bytes == len(LAYERS) * HEADS * PAGE_BYTES
    write(store, 1, [1.0] * (PAGE_TOKENS - 1))
    assert store.used_bytes == len(LAYERS) * HEADS * PAGE_BYTES
    write(store, 1, [2.0])
    assert store.used_bytes == 2 * len(LAYERS) * HEADS * PAGE_BYTES


def test_one_block_is_one_contiguous_run_and_a_page_holds_successive_blocks() -> None:
    store = filled(PAGE_TOKENS)
    assert store.array.shape[1:] == (2, BLOCK, DIM)
    assert store.array[0].flags.c_contiguous
    assert (np.diff(store.physical(3, 1)[:, :PAGE_BLOCKS]) == 1).all()


def test_a_forked_row_shares_pages_and_copies_only_the_page_it_writes() -> None:
    store = filled(PAGE_TOKENS + 3)
    pages = len(LAYERS) * HEADS
    store.fork(1, 2)
    assert store.used_bytes == 2 * pages * PAGE_BYTES
    write(store, 2, [99.0])
    assert store.used_bytes == 3 * pages * PAGE_BYTES
    np.testing.assert_array_equal(store.physical(3, 1)[:, :PAGE_BLOCKS], store.physical(3, 2)[:, :PAGE_BLOCKS])
    assert_holds(store, 1, [float(i) for i in range(PAGE_TOKENS + 3)])
    assert_holds(store, 2, [*(float(i) for i in range(PAGE_TOKENS + 3)), 99.0])


def test_a_reservation_made_before_a_fork_no_longer_allows_writing() -> None:
    store = filled(2)
    store.reserve(1, 6)
    store.fork(1, 2)
    for row in (1, 2):
        with pytest.raises(ConfigError, match="reserve before writing"):
            store.physical_at(3, (row,), np.array([[2]]))
        with pytest.raises(ConfigError, match="reserve before writing"):
            store.set_length(row, 3)


def test_a_store_that_is_full_says_so_and_stays_as_it_was() -> None:
    store = filled(PAGE_TOKENS, limit_pages=6)
    store.fork(1, 2)
    table = store.physical(5, 1).copy()
    with pytest.raises(CapacityError, match=r"tier='host' needs \d+ bytes but has \d+ free") as full:
        store.reserve(1, PAGE_TOKENS + 1)
    assert (full.value.need, full.value.free) == (4 * PAGE_BYTES, 2 * PAGE_BYTES)
    np.testing.assert_array_equal(store.physical(5, 1), table)
    assert_holds(store, 1, [float(i) for i in range(PAGE_TOKENS)])
    store.crop(1, PAGE_TOKENS)
    assert store.used_bytes == 4 * PAGE_BYTES


def test_a_machine_without_memory_leaves_the_store_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(PAGE_TOKENS)

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", no_memory)
        with pytest.raises(CapacityError, match="memory is full"):
            store.reserve(1, 40 * PAGE_TOKENS)
    assert store.used_bytes == 4 * PAGE_BYTES
    assert_holds(store, 1, [float(i) for i in range(PAGE_TOKENS)])
    write(store, 1, [5.0])
    assert_holds(store, 1, [*(float(i) for i in range(PAGE_TOKENS)), 5.0])


def test_a_reader_that_holds_the_array_of_before_still_sees_every_block() -> None:
    store = filled(PAGE_TOKENS)
    old, blocks = store.array, store.physical(3, 1)[:, :PAGE_BLOCKS].copy()
    want = old[blocks].copy()
    store.reserve(1, 30 * PAGE_TOKENS)
    assert store.array is not old
    store.array[:] = np.nan
    np.testing.assert_array_equal(old[blocks], want)


def test_pages_given_back_are_used_again_so_that_long_use_does_not_grow_the_store() -> None:
    store = make_store()
    for turn in range(200):
        store.add(turn)
        write(store, turn, [float(turn)] * 9)
        store.fork(turn, 1000 + turn)
        write(store, 1000 + turn, [1.0])
        store.crop(turn, 3)
        store.retire(turn)
        store.retire(1000 + turn)
    assert store.used_bytes == 0
    assert store.array.shape[0] <= 3 * 3 * len(LAYERS) * HEADS * PAGE_BLOCKS


def test_positions_of_several_rows_are_found_at_once_and_negative_ones_are_nowhere() -> None:
    store = filled(9)
    store.add(2)
    write(store, 2, [7.0] * 5)
    found = store.physical_at(5, (2, 1), np.array([[4, -1], [8, 0]]))
    assert found.shape == (2, HEADS, 2)
    np.testing.assert_array_equal(found[0, :, 0], store.physical(5, 2)[:, 1])
    np.testing.assert_array_equal(found[1, :, 0], store.physical(5, 1)[:, 2])
    np.testing.assert_array_equal(found[1, :, 1], store.physical(5, 1)[:, 0])
    assert (found[0, :, 1] == -1).all()


def test_single_blocks_are_located_by_batch_index_head_and_logical_id() -> None:
    store = filled(9)
    store.add(2)
    write(store, 2, [7.0] * 5)
    found = store.locate(3, (2, 1), np.array([0, 1, 1]), np.array([1, 0, 1]), np.array([1, 2, 0]))
    assert found.tolist() == [store.physical(3, 2)[1, 1], store.physical(3, 1)[0, 2], store.physical(3, 1)[1, 0]]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("row=1", lambda store: store.add(1)),
        ("tokens=10", lambda store: store.crop(1, 10)),
        ("tokens=-1", lambda store: store.crop(1, -1)),
        ("tokens=2", lambda store: store.set_length(1, 2)),
        ("stop=17", lambda store: store.read(3, 1, 0, 17)),
        ("row=1", lambda store: store.fork(1, 1)),
    ],
)
def test_bad_requests_are_refused_by_name_and_value(name: str, call: Callable[[BlockStore], object]) -> None:
    store = filled(9)
    with pytest.raises(ConfigError, match=name):
        call(store)
    assert_holds(store, 1, [float(i) for i in range(9)])


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="page_blocks=0"):
        BlockStore(layers=(0,), kv_heads=1, block=4, head_dim=2, page_blocks=0)


def test_a_store_of_no_layers_keeps_lengths_and_costs_nothing() -> None:
    store = BlockStore(layers=(), kv_heads=HEADS, block=BLOCK, head_dim=DIM)
    store.add(1)
    store.reserve(1, 100)
    store.set_length(1, 100)
    store.fork(1, 2)
    store.reserve(2, 5000)
    store.crop(2, 7)
    assert (store.length(1), store.length(2), store.used_bytes) == (100, 7, 0)
    store.retire(1)
