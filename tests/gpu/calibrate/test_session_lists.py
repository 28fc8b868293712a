"""Lists that a calibration draws lie where a session's do: pages as its books give them, newcomers in order."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from sparda_core.bench.gpu_calibration.session_lists import Layout, SessionLists, layout_of
from sparda_core.bench.gpu_calibration.sizes import full, quick
from sparda_core.errors import ConfigError
from sparda_core.footprint import PAGE_BLOCKS
from sparda_core.runtimes.gpu.fixed_pages import FixedBooks, FixedPages

STORE, SLOTS, LAYERS = 2**20, 2**16, 3


def test_blocks_lie_where_the_books_of_a_session_put_those_of_rows_that_come_one_after_the_other() -> None:
    layout = Layout(rows=3, layers=4, heads=2, blocks=40, slots=8, groups=1)
    pool = FixedPages(pages=100, page_blocks=PAGE_BLOCKS, block=64, head_dim=8, itemsize=2, tier="host")
    books = FixedBooks(layers=4, kv_heads=2, block=64, pool=pool)
    blocks = np.arange(layout.blocks, dtype=np.int32)
    for row in range(layout.rows):
        books.add(row)
        books.reserve(row, layout.blocks * 64)
        for layer, head in itertools.product(range(4), range(2)):
            page = books.row_pages(row)[layer, head][blocks // PAGE_BLOCKS]
            stored = layout.stored(layer, row * 2 + head, blocks)
            assert np.array_equal(stored, page * PAGE_BLOCKS + blocks % PAGE_BLOCKS)


@pytest.mark.parametrize("count", [0, 1, 16, 150, 900])
def test_a_list_holds_as_many_newcomers_as_asked_for_by_pair_in_a_layers_own_stretches(count: int) -> None:
    layout = layout_of(full(), STORE, SLOTS, LAYERS)
    drawn = SessionLists(full(), layout, layers=LAYERS, count=count)
    before: list[set[int]] = [set() for _ in range(LAYERS)]
    for _ in range(4):
        for layer, (source, target) in enumerate(drawn.step()):
            assert source.shape == target.shape == (count,)
            assert len(set(source.tolist())) == len(set(target.tolist())) == count
            row, place = np.divmod(source, layout.layers * layout.heads * layout.blocks)
            at, place = np.divmod(place, layout.heads * layout.blocks)
            assert (at == layer).all()
            pair = row * layout.heads + place // layout.blocks
            order = list(zip(pair.tolist(), source.tolist(), strict=True))
            assert order == sorted(order)
            assert np.array_equal(target // layout.slots % (layout.rows * layout.heads), pair)
            assert not before[layer] & set(source.tolist())  # what a selection just took does not come again at once
            before[layer] = set(source.tolist())


def test_a_session_is_as_large_as_its_memory_allows_and_refused_where_no_row_can_select() -> None:
    whole, small = layout_of(full(), STORE, SLOTS, 12), layout_of(quick(), STORE // 4, SLOTS, 12)
    assert (whole.rows, whole.layers, whole.blocks, whole.groups) == (24, 32, 672, 14)
    assert (small.rows, small.blocks) == (24, 160)
    for store, slots in ((STORE // 16, SLOTS), (STORE, 100)):
        with pytest.raises(ConfigError, match="no room for a row"):
            layout_of(full(), store, slots, 12)


def test_more_than_can_change_in_a_step_and_more_steps_than_pages_hold_are_refused() -> None:
    layout = layout_of(full(), STORE, SLOTS, 1)
    with pytest.raises(ConfigError, match="only 62 blocks are free"):
        SessionLists(full(), layout, layers=1, count=48 * 64)
    drawn = SessionLists(full(), attrs.evolve(layout, rows=1), layers=1, count=2)
    for _ in range(PAGE_BLOCKS // 2 * 64):
        drawn.step()
    with pytest.raises(ConfigError, match="are full"):
        drawn.step()
