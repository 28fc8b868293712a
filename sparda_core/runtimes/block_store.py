"""BlockStore: K and V of whole rows in pages, shared between forked rows until one of them writes.

The host tier, and the device tier of layers that stay resident. Pages hold blocks of one (layer, row,
KV head), so that one block is one contiguous run, and nothing is reserved for a length nobody reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.runtimes.lookup import as_int64, find_blocks
from sparda_core.runtimes.pages import Blocks, PagePool, check_sizes, grown_table
from sparda_core.runtimes.rows import RowTable

IntArray = npt.NDArray[np.int64]


class BlockStore:
    """Rows of K and V blocks for some layers. L layers, Hk KV heads, D head dim.

    layers       ids of the layers kept here
    block        tokens per block
    page_blocks  blocks per page; one page belongs to one (layer, row, KV head)
    limit_bytes  most bytes of pages in use; None: as much as the machine has
    tier         name of the store in errors

    To append: `reserve`, write through `physical_at`, and when every layer is written `set_length`. Only
    tokens counted by `set_length` survive a fork or a page copied on write. Whoever retires, crops or
    reserves must first wait for copies that are still under way: pages given back are used again, and
    `array` is replaced when the store grows.
    """

    def __init__(
        self, *, layers: Sequence[int], kv_heads: int, block: int, head_dim: int, dtype: npt.DTypeLike = np.float32,
        page_blocks: int = 64, limit_bytes: int | None = None, tier: str = "host",
    ) -> None:  # fmt: skip
        check_sizes(kv_heads=kv_heads, block=block, head_dim=head_dim, page_blocks=page_blocks)
        self.block, self.kv_heads = block, kv_heads
        self._layers = {layer: i for i, layer in enumerate(layers)}
        self._page_tokens = page_blocks * block
        self._pool = PagePool(
            page_blocks=page_blocks, block=block, head_dim=head_dim, dtype=dtype, limit_bytes=limit_bytes, tier=tier
        )
        self._rows = RowTable()
        self._table = np.full((0, len(self._layers), kv_heads, 0), -1, np.int64)  # [R, L, Hk, blocks]
        self._lengths = np.zeros(0, np.int64)
        # Tokens up to which a row may be written: every page from its length up to there is its own.
        self._reserved = np.zeros(0, np.int64)
        self._mapped = np.zeros(0, np.int64)  # pages of each (layer, KV head) of a row

    @property
    def array(self) -> Blocks:
        """[n, 2, block, D], the blocks; axis 1 is K, V. Replaced by a `reserve` that has to grow the store.

        Whoever still holds the array of before sees every block as it was then.
        """
        return self._pool.array

    @property
    def used_bytes(self) -> int:
        """Bytes of pages in use; pages shared between rows count once."""
        return self._pool.used * self._pool.page_bytes

    @property
    def used_pages(self) -> int:
        """Pages in use; pages shared between rows count once."""
        return self._pool.used

    @property
    def rows(self) -> tuple[int, ...]:
        """Row ids, oldest first."""
        return self._rows.rows

    def add(self, row: int) -> None:
        """A new, empty row; raises ConfigError where the id is in use."""
        self._rows.refuse_known(row)
        self._widen_rows(self._rows.next_place() + 1)
        place = self._rows.add(row)
        self._lengths[place] = self._reserved[place] = self._mapped[place] = 0

    def retire(self, row: int) -> None:
        """Give a row's pages back; raises RowError where there is no such row."""
        self._drop_pages(self._rows.place(row), keep=0)
        self._rows.remove(row)

    def fork(self, source: int, copy: int) -> None:
        """Add row `copy` with the tokens of `source`. They share pages; both must reserve again before they write."""
        origin = self._rows.place(source)
        self.add(copy)
        place = self._rows.place(copy)
        pages = self._page_count(int(self._lengths[origin]))
        held, filled = self._pages(origin, 0, pages).ravel(), pages * self._pool.page_blocks
        length = self._lengths[origin]
        self._table[place, :, :, :filled] = self._table[origin, :, :, :filled]
        self._pool.share(held)
        # No call in between: pages counted for the copy are pages that it gives back.
        self._mapped[place] = pages
        self._lengths[place] = self._reserved[place] = self._reserved[origin] = length

    def forget(self, row: int) -> None:
        """`retire`, where there is such a row, and however little of it there is."""
        if row in self._rows:
            self.retire(row)

    def length(self, row: int) -> int:
        """Tokens of a row."""
        return int(self._lengths[self._rows.place(row)])

    def set_length(self, row: int, tokens: int) -> None:
        """Say that the first `tokens` tokens are written; raises ConfigError below the length or beyond `reserve`."""
        place = self._rows.place(row)
        length, reserved = int(self._lengths[place]), int(self._reserved[place])
        if not length <= tokens <= reserved:
            raise ConfigError(
                f"tokens={tokens} of row {row} must be between its length {length} and the {reserved} reserved: "
                "use crop to shorten a row, reserve before writing"
            )
        self._lengths[place] = tokens

    def crop(self, row: int, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens, and what was reserved beyond them.

        Raises ConfigError beyond the row's length.
        """
        place = self._rows.place(row)
        if not 0 <= tokens <= self._lengths[place]:
            raise ConfigError(f"tokens={tokens} of row {row} must be between 0 and its length {self._lengths[place]}")
        self._drop_pages(place, keep=self._page_count(tokens))
        self._lengths[place] = self._reserved[place] = tokens

    def reserve(self, row: int, tokens: int) -> None:
        """Make everything writable that appending up to `tokens` tokens will write.

        Adds the pages that are missing and copies the ones that other rows share. All or nothing: raises
        CapacityError, with the row as it was, where the limit or the memory is too small.
        """
        place = self._rows.place(row)
        if tokens <= self._reserved[place]:
            return
        first = int(self._lengths[place]) // self._page_tokens
        last = self._page_count(tokens)
        mapped = int(self._mapped[place])
        written = self._pages(place, first, min(mapped, last))
        shared = np.argwhere(self._pool.is_shared(written))
        missing = max(0, last - mapped)
        n_new = missing * len(self._layers) * self.kv_heads
        self._widen_blocks(last * self._pool.page_blocks)
        fresh = self._pool.take(len(shared) + n_new)
        try:
            table = self._table[place].copy()
            given_up = self._unshare(place, table, first, shared, fresh[n_new:])
            if missing:
                self._map(table, mapped, fresh[:n_new].reshape(len(self._layers), self.kv_heads, missing))
            self._pool.release(given_up)
        except BaseException:
            self._pool.release(fresh)
            raise
        # No call in between: whatever interrupts this, table and pages agree.
        self._table[place] = table
        self._mapped[place] = mapped + missing
        self._reserved[place] = last * self._page_tokens

    def recount(self) -> None:
        """Free every page that no row holds: what was taken for a row and never became its own."""
        held = [self.row_pages(row).ravel() for row in self.rows]
        self._pool.recount(np.concatenate([*held, np.empty(0, np.int64)]))

    def physical(self, layer: int, row: int) -> IntArray:
        """int64 [Hk, blocks]: index in `array` of each logical block, reserved ones included.

        A view of the page table: read it, do not keep it across a change of the row.
        """
        place = self._rows.place(row)
        return self._table[place, self._layers[layer], :, : self._mapped[place] * self._pool.page_blocks]

    def row_pages(self, row: int) -> IntArray:
        """int64 [L, Hk, n]: a row's pages in order, reserved ones included."""
        place = self._rows.place(row)
        return self._pages(place, 0, int(self._mapped[place]))

    def reserved(self, row: int) -> int:
        """Tokens up to which a row may be written."""
        return int(self._reserved[self._rows.place(row)])

    def physical_at(self, layer: int, rows: Sequence[int], positions: IntArray) -> IntArray:
        """int64 [B, Hk, T]: index in `array` of the block that holds each position; -1 for a negative one.

        positions  int64 [B, T]; raises ConfigError beyond what the row has reserved
        """
        found, written = find_blocks(
            self._table[:, self._layers[layer]], self._rows.batch(rows), as_int64(positions), self._reserved, self.block
        )
        if not written:
            reserved = self._reserved[self._rows.batch(rows)].tolist()
            raise ConfigError(
                f"positions={np.asarray(positions).tolist()} must be below the tokens reserved, {reserved} "
                f"for rows {list(rows)}: reserve before writing"
            )
        return found

    def locate(self, layer: int, rows: Sequence[int], batch: IntArray, heads: IntArray, blocks: IntArray) -> IntArray:
        """int64 [m]: index in `array` of `m` single blocks.

        batch   int64 [m], place of each block's row in `rows`
        heads   int64 [m], its KV head
        blocks  int64 [m], its logical id
        """
        return as_int64(self._table[self._rows.batch(rows)[batch], self._layers[layer], heads, blocks])

    def read(self, layer: int, row: int, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Copies of K and V [Hk, stop - start, D] of tokens start .. stop - 1.

        Tokens written but not yet counted by `set_length` may be read too; raises ConfigError beyond `reserve`.
        """
        return self._read(layer, row, start, stop, part=0), self._read(layer, row, start, stop, part=1)

    def read_keys(self, layer: int, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        """The K of `read` alone."""
        return self._read(layer, row, start, stop, part=0)

    def _read(self, layer: int, row: int, start: int, stop: int, *, part: int) -> npt.NDArray[Any]:
        reserved = int(self._reserved[self._rows.place(row)])
        if not 0 <= start <= stop <= reserved:
            raise ConfigError(f"start={start}, stop={stop} of row {row} must be ascending within its {reserved} tokens")
        first, last = start // self.block, -(-stop // self.block)
        blocks = self.array[self.physical(layer, row)[:, first:last], part]  # [Hk, n, block, D], a copy
        tokens: npt.NDArray[Any] = blocks.reshape(self.kv_heads, (last - first) * self.block, blocks.shape[-1])
        return tokens[:, start - first * self.block : stop - first * self.block]

    def _page_count(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _pages(self, place: int, first: int, last: int) -> IntArray:
        """[L, Hk, last - first] pages of a row."""
        n = self._pool.page_blocks
        return self._table[place, :, :, first * n : last * n : n] // n

    def _map(self, table: IntArray, first: int, pages: IntArray) -> None:
        """Enter pages [L, Hk, n] into a row's table, from the row's page `first` on."""
        n = self._pool.page_blocks
        layers, heads, count = pages.shape
        blocks = (pages[..., None] * n + np.arange(n)).reshape(layers, heads, count * n)
        table[:, :, first * n : (first + count) * n] = blocks

    def _unshare(self, place: int, table: IntArray, first: int, shared: IntArray, fresh: IntArray) -> IntArray:
        """Replace shared pages, given as rows (layer, head, page - first), by copies of their own.

        Enters them into the row's table, and returns the pages that they replace there.
        """
        n = self._pool.page_blocks
        filled = -(-int(self._lengths[place]) // self.block) - first * n
        sources = []
        for (layer, head, page), target in zip(shared.tolist(), fresh.tolist(), strict=True):
            at = (first + page) * n
            sources.append(int(table[layer, head, at]) // n)
            self._pool.copy(sources[-1], target, min(n, max(0, filled - page * n)))
            table[layer, head, at : at + n] = target * n + np.arange(n)
        return np.array(sources, np.int64)

    def _drop_pages(self, place: int, keep: int) -> None:
        mapped = int(self._mapped[place])
        if mapped > keep:
            dropped, end = self._pages(place, keep, mapped).ravel(), self._pool.page_blocks * keep
            self._pool.release(dropped)
            # No call in between: pages given back are not the row's any more.
            self._mapped[place] = keep
            self._table[place, :, :, end:] = -1

    def _widen_rows(self, rows: int) -> None:
        held = self._lengths.size
        if rows > held:
            more = max(rows, 2 * held)
            self._table = grown_table(self._table, (more, *self._table.shape[1:]), -1)
            self._lengths, self._reserved, self._mapped = (
                grown_table(counts, (more,), 0) for counts in (self._lengths, self._reserved, self._mapped)
            )

    def _widen_blocks(self, blocks: int) -> None:
        if blocks > self._table.shape[3]:
            self._table = grown_table(self._table, (*self._table.shape[:3], max(blocks, 2 * self._table.shape[3])), -1)
