"""EntryStore: the entries (compressed keys) of every layer, kept up to date token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparda_core.errors import CapacityError, ConfigError
from sparda_core.runtimes.lookup import IntArray, as_int64
from sparda_core.runtimes.pages import check_sizes
from sparda_core.runtimes.rows import RowTable
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.layer_view import EntryView

Floats = npt.NDArray[Any]
#: (row, start, stop) -> post-RoPE keys [Hk, stop - start, D] of earlier tokens of the layer at hand.
Recent = Callable[[int, int, int], Floats]


class EntryStore:
    """Entries of rows, one buffer [R, Hk, capacity, D] a layer. Hk KV heads, D head dim.

    Entry c of a row is the mean of its keys stride * c .. stride * c + window - 1: the same bits however
    the tokens came, one by one or all at once.
    """

    def __init__(
        self, *, layers: Sequence[int], kv_heads: int, head_dim: int, dtype: npt.DTypeLike = np.float32, spec: BlockSpec
    ) -> None:
        check_sizes(kv_heads=kv_heads, head_dim=head_dim)
        self._spec = spec
        self._layers = {layer: i for i, layer in enumerate(layers)}
        self._rows = RowTable()
        self._buffers: list[Floats] = [np.empty((0, kv_heads, 0, head_dim), dtype) for _ in self._layers]
        self._counts = np.zeros((len(self._layers), 0), np.int64)  # [L, R]

    @property
    def rows(self) -> tuple[int, ...]:
        """Row ids, oldest first."""
        return self._rows.rows

    @property
    def used_bytes(self) -> int:
        """Bytes of the entries that exist."""
        entry = [buffer.shape[1] * buffer.shape[3] * buffer.itemsize for buffer in self._buffers]
        return int(self._counts.sum(1) @ np.array(entry, np.int64))

    def count(self, layer: int, row: int) -> int:
        """Entries of a row in one layer."""
        return int(self._counts[self._layers[layer], self._rows.place(row)])

    def add(self, row: int) -> None:
        """A new row without entries; raises ConfigError where the id is in use, CapacityError without memory."""
        self._rows.refuse_known(row)
        self._grow_rows(self._rows.next_place() + 1)
        self._counts[:, self._rows.add(row)] = 0

    def retire(self, row: int) -> None:
        """Forget a row; raises RowError where there is no such row."""
        self._counts[:, self._rows.remove(row)] = 0

    def forget(self, row: int) -> None:
        """`retire`, where there is such a row, and however little of it there is."""
        if row in self._rows:
            self.retire(row)

    def fork(self, source: int, copy: int) -> None:
        """Add row `copy` with copies of the entries of `source`."""
        self._rows.place(source)
        self.add(copy)
        origin, place = self._rows.place(source), self._rows.place(copy)
        for buffer, counts in zip(self._buffers, self._counts, strict=True):
            buffer[place, :, : counts[origin]] = buffer[origin, :, : counts[origin]]
            counts[place] = counts[origin]

    def crop(self, row: int, tokens: int) -> None:
        """Keep the entries whose windows lie within the first `tokens` tokens."""
        place = self._rows.place(row)
        np.minimum(self._counts[:, place], self._spec.entry_count(tokens), out=self._counts[:, place])

    def view(self, layer: int, rows: Sequence[int]) -> EntryView:
        """The entries of some rows as they lie in memory, without a copy.

        Entries added later may appear in the buffer, but the counts stay.
        """
        import torch

        from sparda_core.layer_view import EntryView

        at, places = self._layers[layer], self._rows.batch(rows)
        return EntryView(
            buffer=torch.from_numpy(self._buffers[at]), rows=torch.from_numpy(places),
            counts=torch.from_numpy(self._counts[at, places]),
        )  # fmt: skip

    def extend(self, layer: int, rows: Sequence[int], key: Any, positions: IntArray, recent: Recent) -> None:
        """Add the entries that new tokens complete. All or nothing.

        rows       row ids in batch order
        key        [B, Hk, T, D], post-RoPE keys of the new tokens (an array or a CPU tensor)
        positions  int64 [B], position of each row's first new token; a negative one skips the row
        recent     gives the earlier keys of the first window; asked for at most window - 1 tokens of a row

        Tokens may be given again (a step that was undone): entries from the first position on are made
        anew. Raises ConfigError where tokens before the position were never given.
        """
        at, keys = self._layers[layer], np.asarray(key)
        new: list[tuple[int, int, Floats | None]] = []
        for row, place, first, keys_HTD in zip(
            rows, self._rows.batch(rows).tolist(), as_int64(positions).tolist(), keys, strict=True
        ):
            if first >= 0:
                start = self._spec.entry_count(first)
                if self._counts[at, place] < start:
                    raise ConfigError(
                        f"position={first} of row {row} in layer {layer} must follow the tokens already given: "
                        f"there are {self._counts[at, place]} entries, {start} end before it"
                    )
                new.append((place, start, self._completed(row, first, keys_HTD, recent)))
        ends = [start + (0 if entries is None else entries.shape[1]) for _, start, entries in new]
        self._grow_capacity(at, max(ends, default=0))
        for (place, start, entries), end in zip(new, ends, strict=True):
            if entries is not None:
                self._buffers[at][place, :, start:end] = entries
            self._counts[at, place] = end

    def _completed(self, row: int, first: int, keys_HTD: Floats, recent: Recent) -> Floats | None:
        """Entries [Hk, n, D] completed by new keys, the first of which has position `first`; None for none."""
        spec, stop = self._spec, first + keys_HTD.shape[1]
        before, after = spec.entry_count(first), spec.entry_count(stop)
        if after == before:
            return None
        import torch

        from sparda_core.kernels.compress.cpu import compress

        start = before * spec.stride
        if start < first:
            keys_HTD = np.concatenate([np.asarray(recent(row, start, first)), keys_HTD], axis=1)
        keys = torch.from_numpy(np.require(keys_HTD, requirements=("C", "W")))
        entries: Floats = compress(keys, window=spec.window, stride=spec.stride).numpy()
        return entries

    def _grow_rows(self, rows: int) -> None:
        held = self._counts.shape[1]
        if rows > held:
            more = max(rows, 2 * held)
            for at, buffer in enumerate(self._buffers):
                self._rebuild(at, more, buffer.shape[2])
            self._counts = np.concatenate(
                [self._counts, np.zeros((self._counts.shape[0], more - held), np.int64)], axis=1
            )

    def _grow_capacity(self, at: int, entries: int) -> None:
        buffer = self._buffers[at]
        if entries > buffer.shape[2]:
            self._rebuild(at, buffer.shape[0], max(entries, 2 * buffer.shape[2]))

    def _rebuild(self, at: int, rows: int, capacity: int) -> None:
        """Move a layer to a larger buffer. Entries that exist are copied; the rest is never touched."""
        old = self._buffers[at]
        if old.shape[0] >= rows and old.shape[2] >= capacity:
            return
        shape = (rows, old.shape[1], capacity, old.shape[3])
        try:
            grown = np.empty(shape, old.dtype)
        except MemoryError as wrong:
            raise CapacityError(
                tier="entries", need=int(np.prod(shape)) * old.itemsize, free=0, unit="more bytes",
                hint="this machine's memory is full; retire or crop rows",
            ) from wrong  # fmt: skip
        for place, count in enumerate(self._counts[at].tolist()):
            grown[place, :, :count] = old[place, :, :count]
        self._buffers[at] = grown
