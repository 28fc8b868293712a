from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparda_core.errors import CapacityError, ConfigError, RowError
from sparda_core.runtimes.entry_store import EntryStore
from sparda_core.shapes import BlockSpec
from tests.profiles import share

LAYERS, HEADS, DIM = (2, 7), 2, 3
SPECS = {
    "window 2 strides": BlockSpec(block=8, window=4, stride=2, local=1, sink=0, budget=4),
    "window 1 stride": BlockSpec(block=6, window=3, stride=3, local=1, sink=0, budget=4),
    "window 4 strides": BlockSpec(block=8, window=8, stride=2, local=1, sink=0, budget=4),
    "every token": BlockSpec(block=4, window=1, stride=1, local=1, sink=0, budget=4),
    "stride 1": BlockSpec(block=4, window=3, stride=1, local=1, sink=0, budget=4),
}
Floats = npt.NDArray[Any]


def make_store(spec: BlockSpec, dtype: npt.DTypeLike = np.float32) -> EntryStore:
    return EntryStore(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype=dtype, spec=spec)


def one_shot(keys_HND: Floats, spec: BlockSpec) -> Floats:
    """Every full window's mean, one at a time."""
    starts = range(0, keys_HND.shape[1] - spec.window + 1, spec.stride)
    means = [keys_HND[:, start : start + spec.window].mean(axis=1) for start in starts]
    return np.stack(means, axis=1) if means else keys_HND[:, :0]


def some_keys(tokens: int, seed: int = 0, layers: int = len(LAYERS)) -> Floats:
    return np.random.default_rng(seed).standard_normal((layers, HEADS, tokens, DIM)).astype(np.float32)


def give(store: EntryStore, row: int, keys_LHND: Floats, start: int, stop: int) -> None:
    """Hand tokens start .. stop - 1 of a row to every layer."""
    for at, layer in enumerate(LAYERS):
        new = keys_LHND[at, None, :, start:stop]
        store.extend(layer, (row,), new, np.array([start]), recent_of({row: keys_LHND[at]}, start))


def recent_of(keys: dict[int, Floats], known: int) -> Callable[[int, int, int], Floats]:
    def recent(row: int, start: int, stop: int) -> Floats:
        assert 0 <= start < stop <= known, "only keys of earlier tokens are known"
        return keys[row][:, start:stop]

    return recent


def entries_of(store: EntryStore, layer: int, row: int) -> Floats:
    view = store.view(layer, (row,))
    return view.buffer[int(view.rows[0]), :, : int(view.counts[0])].numpy()


@settings(max_examples=share(60), deadline=None)
@given(
    name=st.sampled_from(sorted(SPECS)), cuts=st.lists(st.integers(0, 40), max_size=8), tokens=st.integers(0, 40),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_chunking_gives_the_bits_of_one_chunk_and_the_means_of_full_windows(
    name: str, cuts: list[int], tokens: int, seed: int
) -> None:
    spec, keys = SPECS[name], some_keys(tokens, seed)
    whole, parts = make_store(spec), make_store(spec)
    whole.add(0)
    parts.add(0)
    give(whole, 0, keys, 0, tokens)
    edges = sorted({0, tokens, *(cut for cut in cuts if cut < tokens)})
    for start, stop in itertools.pairwise(edges):
        give(parts, 0, keys, start, stop)
    for at, layer in enumerate(LAYERS):
        assert whole.count(layer, 0) == parts.count(layer, 0) == spec.entry_count(tokens)
        np.testing.assert_array_equal(entries_of(parts, layer, 0), entries_of(whole, layer, 0))
        np.testing.assert_allclose(entries_of(parts, layer, 0), one_shot(keys[at], spec), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_crop_to_any_length_keeps_the_entries_that_end_within_it(name: str) -> None:
    spec, keys = SPECS[name], some_keys(14)
    for tokens in range(14, -1, -1):
        store = make_store(spec)
        store.add(0)
        give(store, 0, keys, 0, 14)
        store.crop(0, tokens)
        assert store.count(2, 0) == store.count(7, 0) == spec.entry_count(tokens)
        give(store, 0, keys, tokens, 14)
        np.testing.assert_allclose(entries_of(store, 2, 0), one_shot(keys[0], spec), rtol=1e-5, atol=1e-6)


class EntriesAgreeWithOneShot(RuleBasedStateMachine):
    """The keys of each row, in plain arrays; every entry is computed again from them."""

    @initialize(name=st.sampled_from(sorted(SPECS)))
    def start(self, name: str) -> None:
        self.spec = SPECS[name]
        self.store = make_store(self.spec, np.float64)
        self.keys: dict[int, Floats] = {}
        self.made = 0

    def row(self, pick: int) -> int:
        return sorted(self.keys)[pick % len(self.keys)]

    @rule()
    def add(self) -> None:
        self.made += 1
        self.store.add(self.made)
        self.keys[self.made] = some_keys(0)

    @precondition(lambda self: self.keys)
    @rule(tokens=st.integers(1, 12), idle=st.integers(0, 3), twice=st.booleans())
    def extend_a_batch(self, tokens: int, idle: int, *, twice: bool) -> None:
        rows = sorted(self.keys, reverse=True)
        self.made += 1
        new = {row: some_keys(tokens, seed=self.made * 50 + row) for row in rows}
        positions = np.array([self.keys[row].shape[2] if i != idle else -1 for i, row in enumerate(rows)])
        for _ in range(1 + twice):  # a step that was undone is given again
            for at, layer in enumerate(LAYERS):
                known = {row: self.keys[row][at] for row in rows}
                batch = np.stack([new[row][at] for row in rows])
                self.store.extend(layer, rows, batch, positions, recent_of(known, 10**9))
        for row, position in zip(rows, positions, strict=True):
            if position >= 0:
                self.keys[row] = np.concatenate([self.keys[row], new[row]], axis=2)

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9))
    def fork(self, pick: int) -> None:
        self.made += 1
        row = self.row(pick)
        self.store.fork(row, self.made)
        self.keys[self.made] = self.keys[row].copy()

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9), percent=st.integers(0, 100))
    def crop(self, pick: int, percent: int) -> None:
        row = self.row(pick)
        tokens = self.keys[row].shape[2] * percent // 100
        self.store.crop(row, tokens)
        self.keys[row] = self.keys[row][:, :, :tokens]

    @precondition(lambda self: self.keys)
    @rule(pick=st.integers(0, 9))
    def retire(self, pick: int) -> None:
        row = self.row(pick)
        self.store.retire(row)
        del self.keys[row]
        with pytest.raises(RowError):
            self.store.count(LAYERS[0], row)

    @invariant()
    def every_entry_is_the_mean_of_its_window(self) -> None:
        for row, keys in getattr(self, "keys", {}).items():
            for at, layer in enumerate(LAYERS):
                want = one_shot(keys[at].astype(np.float64), self.spec)
                np.testing.assert_allclose(entries_of(self.store, layer, row), want, rtol=1e-6, atol=1e-6)


TestEntriesAgreeWithOneShot = EntriesAgreeWithOneShot.TestCase
TestEntriesAgreeWithOneShot.settings = settings(max_examples=share(30), stateful_step_count=20, deadline=None)


def test_a_view_shows_the_rows_asked_for_and_its_counts_do_not_move() -> None:
    spec, keys = SPECS["window 2 strides"], some_keys(20)
    store = make_store(spec)
    for row, tokens in ((5, 9), (3, 20)):
        store.add(row)
        give(store, row, keys, 0, tokens)
    view = store.view(7, (3, 5))
    assert view.counts.tolist() == [spec.entry_count(20), spec.entry_count(9)]
    assert (view.buffer.dtype, view.rows.dtype, view.counts.dtype) == (torch.float32, torch.int64, torch.int64)
    before = view.padded().clone()
    give(store, 5, keys, 9, 20)
    assert view.counts.tolist() == [9, 3]
    np.testing.assert_array_equal(view.padded()[1, :, :3], before[1, :, :3])


def test_keys_may_be_a_tensor() -> None:
    spec, keys = SPECS["stride 1"], some_keys(6)
    store = make_store(spec)
    store.add(0)
    store.extend(2, (0,), torch.from_numpy(keys[:1]), np.array([0]), recent_of({}, 0))
    np.testing.assert_allclose(entries_of(store, 2, 0), one_shot(keys[0], spec), rtol=1e-5)


def test_tokens_after_a_gap_are_refused_and_nothing_changes() -> None:
    store = make_store(SPECS["window 2 strides"])
    for row in (0, 1):
        store.add(row)
    keys = some_keys(12)
    with pytest.raises(ConfigError, match="position=8 of row 1 in layer 2"):
        store.extend(2, (0, 1), np.stack([keys[0, :, :4]] * 2), np.array([0, 8]), recent_of({1: keys[0]}, 8))
    assert (store.count(2, 0), store.count(2, 1)) == (0, 0)


def test_keys_that_cannot_be_read_leave_the_store_as_it_was() -> None:
    spec, keys = SPECS["window 2 strides"], some_keys(12)
    store = make_store(spec)
    for row in (0, 1):
        store.add(row)
        give(store, row, keys, 0, 5)

    def broken(row: int, start: int, stop: int) -> Floats:
        if row == 1:
            raise OSError("unreadable")
        return keys[0, :, start:stop]

    with pytest.raises(OSError, match="unreadable"):
        store.extend(2, (0, 1), np.stack([keys[0, :, 5:9]] * 2), np.array([5, 5]), broken)
    assert store.count(2, 0) == store.count(2, 1) == spec.entry_count(5)


def test_a_machine_without_memory_leaves_the_store_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, keys = SPECS["window 2 strides"], some_keys(40)
    store = make_store(spec)
    store.add(0)
    give(store, 0, keys, 0, 10)

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", no_memory)
        with pytest.raises(CapacityError, match="memory is full"):
            store.extend(2, (0,), keys[:1, :, 10:40], np.array([10]), recent_of({0: keys[0]}, 10))
        with pytest.raises(CapacityError, match="memory is full"):
            store.fork(0, 1)
    assert (store.rows, store.count(2, 0)) == ((0,), spec.entry_count(10))
    give(store, 0, keys, 10, 40)
    np.testing.assert_allclose(entries_of(store, 7, 0), one_shot(keys[1], spec), rtol=1e-5, atol=1e-6)


def test_memory_that_holds_no_entry_is_never_read() -> None:
    spec, keys = SPECS["window 2 strides"], some_keys(30)
    store = make_store(spec)
    store.add(0)
    give(store, 0, keys, 0, 10)
    for buffer in store._buffers:
        buffer[:, :, spec.entry_count(10) :] = np.nan
    store.fork(0, 1)
    give(store, 1, keys, 10, 30)
    np.testing.assert_allclose(entries_of(store, 2, 1), one_shot(keys[0], spec), rtol=1e-5, atol=1e-6)
    assert store.used_bytes == 2 * HEADS * DIM * 4 * (spec.entry_count(10) + spec.entry_count(30))


def test_the_check_notices_entries_of_a_shifted_window() -> None:
    spec, keys = SPECS["window 2 strides"], some_keys(12)
    store = make_store(spec)
    store.add(0)
    give(store, 0, np.roll(keys, 1, axis=2), 0, 12)
    assert not np.allclose(entries_of(store, 2, 0), one_shot(keys[0], spec), rtol=1e-3)
