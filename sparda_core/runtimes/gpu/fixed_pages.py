"""Pages of memory that cannot grow, because captured graphs hold its address."""

from __future__ import annotations

import numpy as np

from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.pages import PagePool


class FixedPages(PagePool):
    """Counts `pages` pages; where they lie, and who copies one, is the caller's affair.

    copies  (source page, target page, blocks) asked for since the caller last took them away; the copy must
            happen before anything else is written to either page
    """

    def __init__(self, *, pages: int, page_blocks: int, block: int, head_dim: int, itemsize: int, tier: str) -> None:
        # Bytes are bytes here: the width of a value is all that counting needs to know of its type.
        dtype = np.dtype(f"V{itemsize}")
        super().__init__(
            page_blocks=page_blocks, block=block, head_dim=head_dim, dtype=dtype, limit_bytes=None, tier=tier
        )
        self.copies: list[tuple[int, int, int]] = []
        self._references = np.zeros(pages, np.int64)
        self._free = list(range(pages - 1, -1, -1))

    def copy(self, source: int, target: int, blocks: int) -> None:
        """Note that the first `blocks` blocks of one page are wanted on another."""
        if blocks:
            self.copies.append((source, target, blocks))

    def _grow(self, more: int) -> None:
        raise self._full(more, len(self._free), "retire or crop rows, or open with more places, tokens or memory")


class FixedBooks(BlockStore):
    """The books of a BlockStore over pages that cannot grow; who holds which page, and no content."""

    def __init__(self, *, layers: int, kv_heads: int, block: int, pool: FixedPages) -> None:
        super().__init__(
            layers=range(layers), kv_heads=kv_heads, block=block, head_dim=1, page_blocks=pool.page_blocks,
            tier=pool.tier,
        )  # fmt: skip
        self._pool = pool
