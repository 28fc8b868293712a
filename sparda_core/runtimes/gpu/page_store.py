"""PageStore: every block of some layers, in pages of fixed memory, found through a page table on the device.

The host tier of offloaded layers (pinned memory) and the device tier of resident ones: the same books as
`BlockStore`, hence the same rules for forks, crops and pages copied on write.
"""

from __future__ import annotations

import numpy as np
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.tables import Paged
from sparda_core.runtimes.gpu.alias import as_words, on_device
from sparda_core.runtimes.gpu.fixed_pages import FixedBooks, FixedPages
from sparda_core.runtimes.gpu.sizes import StoreSizes
from sparda_core.runtimes.gpu.upload import upload

#: One layer's index, or all.
At = int | slice
ALL = slice(None)
FLOAT8 = torch.float8_e4m3fn


class PageStore:
    """Rows of L layers by place. B places, Hk KV heads, D head dim, P pages a (row, head).

    memory  uint8 [bytes], on the device or pinned on the host; it holds whole pages, as many as fit
    float8  the memory holds float8 of keys and values, with scales; `write` is not for it

    Nothing here waits for the device: blocks and tables change by operations on the current stream, which must be
    the one that steps are launched on. So a step under way still sees the pages as they were.
    """

    def __init__(self, sizes: StoreSizes, memory: torch.Tensor, *, tier: str, float8: bool = False) -> None:
        stored = torch.uint8 if float8 else sizes.dtype
        device, block, width = sizes.device, sizes.block, sizes.head_dim
        page_bytes = sizes.page_blocks * 2 * block * width * stored.itemsize
        pages = memory.numel() // page_bytes
        self.block, self.page_blocks, self.dtype, self.tier = block, sizes.page_blocks, sizes.dtype, tier
        shape = (pages * sizes.page_blocks, 2, block, width)
        whole = memory[: pages * page_bytes]
        self.array = whole.view(stored).view(shape)
        self.scales = torch.zeros(shape[:2], device=device) if float8 else None
        self._rows = on_device(whole, device).view(stored).view(-1, width)  # (block * 2 + part) * tokens + token
        self._pool = FixedPages(
            pages=pages, page_blocks=sizes.page_blocks, block=block, head_dim=width, itemsize=stored.itemsize, tier=tier
        )
        self._book = FixedBooks(layers=sizes.layers, kv_heads=sizes.kv_heads, block=block, pool=self._pool)
        wide = -(-sizes.tokens // (block * sizes.page_blocks))
        self.table = sizes.ints(*sizes.lead, wide, value=-1)
        self._shown = np.full((sizes.places, sizes.layers, sizes.kv_heads, wide), -1, np.int32)  # what the table holds
        self._row_of: dict[int, int] = {}  # place -> row of the book
        self._next = 0

    # Rows -----------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of pages in use; pages that rows share count once."""
        return self._book.used_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages."""
        return self.array.nbytes

    def paged(self, at: int) -> Paged:
        """One layer, as kernels take it."""
        return Paged(array=self.array, table=self.table[at], page_blocks=self.page_blocks, scales=self.scales)

    def add(self, place: int) -> None:
        """An empty row."""
        self._book.add(self._named(place))

    def retire(self, place: int) -> None:
        """Give a row's pages back, if there is one, however little of it; may be done again where it was cut short."""
        if place in self._row_of:
            self._book.forget(self._row_of[place])
            del self._row_of[place]
        self._mirror(place)

    def fork(self, source: int, copy: int) -> None:
        """The row in `copy` starts with the pages of `source`; both must reserve again before they are written."""
        self._book.fork(self._row_of[source], self._named(copy))
        self._mirror(copy)

    def _named(self, place: int) -> int:
        """A name for a new row in the books: of the place before the books know it, so that `retire` undoes both."""
        row = self._row_of[place] = self._next
        self._next = row + 1
        return row

    def move(self, source: int, target: int) -> None:
        """The row of `source` from now on lies in `target`, which must be free; may be done again."""
        if source in self._row_of:
            self._row_of[target] = self._row_of[source]
            del self._row_of[source]
        self._mirror(target)
        self._mirror(source)

    def crop(self, place: int, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens."""
        self._book.crop(self._row_of[place], tokens)
        self._mirror(place)

    def reserve(self, place: int, tokens: int) -> None:
        """Pages of its own for all that appending up to `tokens` tokens will write; all or nothing (CapacityError)."""
        row = self._row_of[place]
        if tokens <= self._book.reserved(row):
            return
        try:
            self._book.reserve(row, tokens)
        finally:
            self._copy_pages()
        self._mirror(place)

    def commit(self, place: int, tokens: int) -> None:
        """Say that the first `tokens` tokens are written."""
        self._book.set_length(self._row_of[place], tokens)

    def _mirror(self, place: int) -> None:
        """Bring the device's table of one place up to date, where it differs."""
        now = np.full(self._shown.shape[1:], -1, np.int32)
        if place in self._row_of:
            pages = self._book.row_pages(self._row_of[place])
            now[..., : pages.shape[2]] = pages
        changed = np.flatnonzero((now != self._shown[place]).any((0, 1)))
        if changed.size:
            part = slice(int(changed[0]), int(changed[-1]) + 1)
            upload(now[..., part], self.table[:, place, :, part])
            self._shown[place] = now

    def _copy_pages(self) -> None:
        copies, self._pool.copies = self._pool.copies, []
        if not copies:
            return
        n = self.page_blocks
        ids = np.array([[source * n + i, target * n + i] for source, target, blocks in copies for i in range(blocks)])
        where = torch.empty(ids.T.shape, dtype=torch.int64, device=self.table.device)
        self.copy_blocks(*upload(np.ascontiguousarray(ids.T), where))

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Blocks `source` onto blocks `target`, int64 [n] each on the device."""
        blocks = as_words(self._rows.view(self.array.shape[0], -1))
        blocks.index_copy_(0, target, blocks.index_select(0, source))
        if self.scales is not None:
            self.scales.index_copy_(0, target, self.scales.index_select(0, source))

    # Content --------------------------------------------------------------------------------------

    def block_ids(self, at: At, place: int, blocks: torch.Tensor) -> torch.Tensor:
        """int64 [(L,) Hk, n] on the device: index in `array` of blocks int64 [n] of a row."""
        pages = self.table[at, place].index_select(-1, blocks // self.page_blocks).long()
        return pages * self.page_blocks + blocks % self.page_blocks

    def write(self, at: int, place: int, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """K and V [Hk, n, D] of tokens start .. into one layer; raises ConfigError beyond `reserve`."""
        rows = self._token_rows(at, place, start, start + keys.shape[1])
        words = as_words(self._rows)
        for part, tokens in enumerate((keys, values)):
            given = as_words(tokens.to(self.dtype).contiguous())
            words.index_copy_(0, (rows + part * self.block).reshape(-1), given.reshape(-1, words.shape[1]))

    def read(self, at: At, place: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [(L,) Hk, stop - start, D] of tokens start .. stop - 1, on the device."""
        rows = self._token_rows(at, place, start, stop)
        keys, values = (self._take(rows + part * self.block, part) for part in (0, 1))
        return keys, values

    def read_blocks(self, ids: torch.Tensor) -> torch.Tensor:
        """Blocks [n, 2, block, D] of `dtype` by their index, int64 [n]."""
        taken = as_words(self._rows.view(self.array.shape[0], -1)).index_select(0, ids)
        blocks = taken.view(self.array.dtype).view(-1, *self.array.shape[1:])
        if self.scales is None:
            return blocks
        return (blocks.view(FLOAT8).float() * self.scales.index_select(0, ids)[..., None, None]).to(self.dtype)

    def write_blocks(self, ids: torch.Tensor, blocks: torch.Tensor, scales: torch.Tensor) -> None:
        """Float8 blocks uint8 [n, 2, block, D] with their scales [n, 2], where ids int64 [n] say."""
        assert self.scales is not None
        flat = as_words(self._rows.view(self.array.shape[0], -1))
        flat.index_copy_(0, ids, as_words(blocks.reshape(len(blocks), -1)))
        self.scales.index_copy_(0, ids, scales)

    def _take(self, rows: torch.Tensor, part: int) -> torch.Tensor:
        words = as_words(self._rows)
        taken = words.index_select(0, rows.reshape(-1)).view(self.array.dtype).view(*rows.shape, self.array.shape[3])
        if self.scales is None:
            return taken
        scale = self.scales[:, part].index_select(0, (rows // (2 * self.block)).reshape(-1)).view(*rows.shape, 1)
        return (taken.view(FLOAT8).float() * scale).to(self.dtype)

    def _token_rows(self, at: At, place: int, start: int, stop: int) -> torch.Tensor:
        """int64 [(L,) Hk, n]: where the K of each token lies in `_rows`."""
        reserved = self._book.reserved(self._row_of[place])
        if not 0 <= start <= stop <= reserved:
            raise ConfigError(f"tokens {start}..{stop} of place {place} must lie within the {reserved} reserved")
        positions = torch.arange(start, stop, device=self.table.device)
        return self.block_ids(at, place, positions // self.block) * (2 * self.block) + positions % self.block

