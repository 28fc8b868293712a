"""NaN wherever no row has a token: what a kernel must never look at."""

from __future__ import annotations

import numpy as np

from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.session import CpuSession


def poison_what_no_row_owns(session: CpuSession) -> int:
    """Fill freed pages, empty slots and the ends of last blocks with NaN; returns how many values."""
    tiers = session._tiers
    spoiled = 0
    for store, layers in ((tiers.device, range(tiers.resident)), (tiers.host, tiers.pools)):
        spoiled += _pages(store)
        spoiled += sum(_ends(store, layer) for layer in layers)
    for pool in tiers.pools.values():
        held = pool._tables.held.reshape(-1)
        pool.array[: held.size][held < 0] = np.nan
        spoiled += int((held < 0).sum())
    return spoiled


def _pages(store: BlockStore) -> int:
    pool = store._pool
    free = np.repeat(pool._references == 0, pool.page_blocks)
    pool.array[free] = np.nan
    return int(free.sum())


def _ends(store: BlockStore, layer: int) -> int:
    spoiled = 0
    for row in store.rows:
        length, blocks = store.length(row), store.physical(layer, row)
        first = length // store.block
        if first < blocks.shape[1]:
            store.array[blocks[:, first], :, length % store.block :] = np.nan
            store.array[blocks[:, first + 1 :]] = np.nan
            spoiled += blocks.size
    return spoiled
