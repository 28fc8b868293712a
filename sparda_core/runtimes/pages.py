"""Pages: fixed runs of blocks in one growing array, counted by reference.

A page knows nothing of rows; `block_store` says who holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import CapacityError, ConfigError

PageIds = npt.NDArray[np.int64]
Blocks = npt.NDArray[Any]

#: Growth beyond what is needed now. Untouched memory of a large allocation is not committed by the
#: operating system, so the spare pages cost address space, not memory.
_GROWTH = 1.5


class PagePool:
    """Pages of `page_blocks` blocks in one array [pages * page_blocks, 2, block, D].

    `array` is replaced when the pool grows. The old array stays as it was at that moment, so a reader
    that still holds it sees every block written before.
    """

    def __init__(
        self, *, page_blocks: int, block: int, head_dim: int, dtype: npt.DTypeLike, limit_bytes: int | None, tier: str
    ) -> None:
        self.page_blocks = page_blocks
        self.tier = tier
        self.array: Blocks = np.empty((0, 2, block, head_dim), dtype)
        self.page_bytes = page_blocks * 2 * block * head_dim * self.array.itemsize
        self._limit = None if limit_bytes is None else limit_bytes // self.page_bytes
        self._references = np.zeros(0, np.int64)
        self._free: list[int] = []

    @property
    def pages(self) -> int:
        """Pages in `array`, in use or not."""
        return self._references.size

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - len(self._free)

    def is_shared(self, pages: PageIds) -> npt.NDArray[np.bool_]:
        """Which pages have more than one holder; same shape as `pages`."""
        return self._references[pages] > 1

    def take(self, count: int) -> PageIds:
        """`count` pages, held once each, content undefined.

        Raises CapacityError, with nothing changed, where the limit or the machine's memory is too small.
        """
        if count > len(self._free):
            self._grow(count - len(self._free))
        keep = len(self._free) - count
        taken = np.array(self._free[keep:][::-1], np.int64)
        # No call in between: whatever interrupts this, a page is either free or held.
        self._references[taken] = 1
        del self._free[keep:]
        return taken

    def share(self, pages: PageIds) -> None:
        """One more holder for each page."""
        assert (self._references[pages] > 0).all(), "a page that nobody holds cannot be shared"
        held = self._references.copy()
        np.add.at(held, pages, 1)
        self._references = held

    def release(self, pages: PageIds) -> None:
        """One holder less for each page; a page without holders is free for anybody."""
        assert (self._references[pages] > 0).all(), "a page was released twice"
        left = self._references.copy()
        np.subtract.at(left, pages, 1)
        # descending, so that the lowest page is taken first
        free = self._free + np.unique(pages[left[pages] == 0])[::-1].tolist()
        self._references, self._free = left, free

    def recount(self, held: PageIds) -> None:
        """Say anew who holds what: each page as often as it is listed; what is not listed is free.

        For whoever was interrupted between taking pages and noting that they are his.
        """
        references = np.bincount(held, minlength=self.pages).astype(np.int64)
        free = np.flatnonzero(references == 0)[::-1].tolist()
        self._references, self._free = references, free

    def copy(self, source: int, target: int, blocks: int) -> None:
        """Copy the first `blocks` blocks of one page onto another."""
        n = self.page_blocks
        self.array[target * n : target * n + blocks] = self.array[source * n : source * n + blocks]

    def _grow(self, more: int) -> None:
        need = self.pages + more
        if self._limit is not None and need > self._limit:
            raise self._full(more, self._limit - self.used, "raise the limit, retire or crop rows")
        total = max(need, int(self.pages * _GROWTH))
        if self._limit is not None:
            total = min(total, self._limit)
        try:
            grown = np.empty((total * self.page_blocks, *self.array.shape[1:]), self.array.dtype)
        except (MemoryError, ValueError) as wrong:  # ValueError: more than an array may ever hold
            raise self._full(more, len(self._free), "this machine's memory is full; retire or crop rows") from wrong
        n = self.page_blocks
        for page in np.flatnonzero(self._references).tolist():
            grown[page * n : (page + 1) * n] = self.array[page * n : (page + 1) * n]
        free = [*range(total - 1, self.pages - 1, -1), *self._free]
        references = np.concatenate([self._references, np.zeros(total - self.pages, np.int64)])
        # All or nothing: a page that is free twice would be given to two rows.
        self.array, self._references, self._free = grown, references, free

    def _full(self, more: int, free: int, hint: str) -> CapacityError:
        need = (more + len(self._free)) * self.page_bytes
        return CapacityError(tier=self.tier, need=need, free=free * self.page_bytes, unit="bytes", hint=hint)


def check_sizes(**sizes: int) -> None:
    """Raise ConfigError for the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be >= 1")


def grown_table(table: npt.NDArray[Any], shape: tuple[int, ...], fill: int) -> npt.NDArray[Any]:
    """A table of `shape` (no smaller on any axis) with `table` in its low corner and `fill` elsewhere."""
    grown = np.full(shape, fill, table.dtype)
    grown[tuple(slice(0, n) for n in table.shape)] = table
    return grown
