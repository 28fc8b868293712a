"""Host memory: the kinds of fault that others met, and what happens here (docs/cases.md, D)."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sparda_core.errors import RowError
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.pages import PagePool
from sparda_core.runtimes.slot_pool import SlotPool

ROOT = Path(__file__).parents[2]
PAGES = 100_000


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_hundred_thousand_pages_taken_and_given_back_leave_memory_as_it_was() -> None:
    pool = PagePool(page_blocks=2, block=8, head_dim=16, dtype=np.float32, limit_bytes=None, tier="host")
    held = [pool.take(3) for _ in range(20)]
    gc.collect()
    pages, before = pool.pages, resident_bytes()
    for cycle in range(PAGES // 10):
        for at, size in enumerate((1, 2, 3, 4)):  # ten pages
            pool.release(held[at])
            held[at] = pool.take(size)
        every = np.concatenate(held)
        if cycle % 50 == 0:
            assert len(set(every.tolist())) == every.size == pool.used
    for some in held:
        pool.release(some)
    assert pool.used == 0
    assert pool.pages == pages
    assert resident_bytes() - before < 4 << 20


def test_rows_that_come_and_go_for_hours_leave_stores_as_large_as_they_were() -> None:
    store = BlockStore(layers=(0,), kv_heads=1, block=4, head_dim=4, page_blocks=2)
    slots = SlotPool(kv_heads=1, slots=4, block=4, head_dim=4)

    def live(row: int) -> None:
        for part in (store, slots):
            part.add(row)
        store.reserve(row, 9 + row % 13)
        store.set_length(row, 9)
        store.fork(row, -row - 1)
        store.crop(row, 3)
        store.retire(-row - 1)
        for part in (store, slots):
            part.retire(row)

    for row in range(300):
        live(row)
    gc.collect()
    size, before = store.array.nbytes + slots.array.nbytes, resident_bytes()
    for row in range(300, 6000):
        live(row)
    assert (store.used_bytes, slots.used_bytes, store.rows, slots.rows) == (0, 0, (), ())
    assert store.array.nbytes + slots.array.nbytes == size
    assert resident_bytes() - before < 4 << 20


def test_nothing_is_given_back_twice() -> None:
    pool = PagePool(page_blocks=1, block=2, head_dim=2, dtype=np.float32, limit_bytes=None, tier="host")
    taken = pool.take(2)
    pool.release(taken)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(taken[:1])
    store = BlockStore(layers=(0,), kv_heads=1, block=4, head_dim=4)
    store.add(5)
    store.retire(5)
    with pytest.raises(RowError, match="row=5"):
        store.retire(5)


def test_several_threads_touching_pages_before_they_are_pinned_were_measured_to_be_faster() -> None:
    """The way that is offered, by its data; what the simulator need not know: a session pins once."""
    kept = json.loads((ROOT / "benchmarks" / "results" / "2026-11-30-pinning-h200.json").read_text(encoding="utf-8"))
    taken = {(row["method"], row["threads"]): row["s per GiB"] for row in kept["rows"]}
    assert taken["register-4k", 8] < taken["register-4k", 1]
    assert taken["register-huge", 8] < taken["cuda-host-alloc", 8]
    assert all(row["taken / asked"] < 1.02 for row in kept["rows"])
