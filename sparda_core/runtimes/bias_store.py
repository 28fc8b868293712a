"""BiasStore: the token biases of every layer, and the means that blocks are ranked by, kept up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import CapacityError
from sparda_core.kernels.attend.bias import ListedBias
from sparda_core.layer_view import EntryView
from sparda_core.runtimes.entry_store import EntryStore
from sparda_core.runtimes.lookup import IntArray
from sparda_core.runtimes.rows import RowTable
from sparda_core.shapes import BlockSpec

Floats = npt.NDArray[Any]


class BiasStore:
    """Biases of rows by token, one buffer [R, Hk, capacity] a layer. On the device tier: attention reads all of them.

    Means are entries of width 1: mean c covers the tokens of entry c, the same bits however the tokens came.
    """

    def __init__(self, *, layers: int, kv_heads: int, dtype: npt.DTypeLike, spec: BlockSpec) -> None:
        self._means = EntryStore(layers=range(layers), kv_heads=kv_heads, head_dim=1, dtype=dtype, spec=spec)
        self._rows = RowTable()
        self._buffers: list[Floats] = [np.empty((0, kv_heads, 0), dtype) for _ in range(layers)]
        self._lengths: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of the biases and means that exist."""
        each = sum(buffer.shape[1] * buffer.itemsize for buffer in self._buffers)
        return int(sum(self._lengths.values()) * each) + self._means.used_bytes

    def add(self, row: int) -> None:
        """A new row without tokens."""
        self._grow(self._rows.next_place() + 1, 0)
        self._means.add(row)
        self._rows.add(row)
        self._lengths[row] = 0

    def retire(self, row: int) -> None:
        """Forget a row; raises RowError where there is no such row."""
        self._means.retire(row)
        self._rows.remove(row)
        del self._lengths[row]

    def forget(self, row: int) -> None:
        """`retire`, where there is such a row, and however little of it there is."""
        self._means.forget(row)
        self._lengths.pop(row, None)
        if row in self._rows:
            self._rows.remove(row)

    def fork(self, source: int, copy: int) -> None:
        """Add row `copy` with copies of the biases of `source`."""
        self._grow(self._rows.next_place() + 1, 0)
        self._means.fork(source, copy)
        tokens = self._lengths[source]
        origin, place = self._rows.place(source), self._rows.add(copy)
        for buffer in self._buffers:
            buffer[place, :, :tokens] = buffer[origin, :, :tokens]
        self._lengths[copy] = tokens

    def crop(self, row: int, tokens: int) -> None:
        """Keep the first `tokens` tokens."""
        self._means.crop(row, tokens)
        self._lengths[row] = min(tokens, self._lengths[row])

    def extend(self, layer: int, rows: Sequence[int], bias: torch.Tensor, positions: IntArray) -> None:
        """Add the biases [B, Hk, T] of new tokens, of which each row's first has position positions[B].

        Tokens may be given again (a step that was undone). Raises ConfigError where tokens before the position were
        never given.
        """
        values = bias.numpy()
        self._grow(0, int(positions.max(initial=0)) + values.shape[2])
        buffer = self._buffers[layer]

        def recent(row: int, start: int, stop: int) -> Floats:
            return buffer[self._rows.place(row), :, start:stop, None]

        self._means.extend(layer, rows, values[..., None], positions, recent)
        for row, first, new in zip(rows, positions.tolist(), values, strict=True):
            stop = first + new.shape[1]
            buffer[self._rows.place(row), :, first:stop] = new
            self._lengths[row] = max(stop, self._lengths[row])

    def means(self, layer: int, rows: Sequence[int]) -> EntryView:
        """Means of some rows as they lie in memory, without a copy."""
        return self._means.view(layer, rows)

    def listed(self, layer: int, rows: Sequence[int], chosen: npt.NDArray[np.int32]) -> ListedBias:
        """What attention over the logical blocks `chosen` [B, Hk, T, W] adds to its logits."""
        return ListedBias(
            values=torch.from_numpy(self._buffers[layer]), rows=torch.from_numpy(self._rows.batch(rows)),
            blocks=torch.from_numpy(chosen),
        )  # fmt: skip

    def of(self, layer: int, row: int, tokens: int) -> torch.Tensor:
        """[Hk, tokens], biases of a row's first tokens; a view."""
        return torch.from_numpy(self._buffers[layer])[self._rows.place(row), :, :tokens]

    def _grow(self, rows: int, tokens: int) -> None:
        """Make room for so many rows and tokens a row; both at least double."""
        old = self._buffers[0].shape
        size = tuple(
            have if want <= have else max(want, 2 * have) for want, have in ((rows, old[0]), (tokens, old[2]))
        )
        if size == (old[0], old[2]):
            return
        held = {self._rows.place(row): tokens for row, tokens in self._lengths.items()}
        made = []
        for buffer in self._buffers:
            shape = (size[0], buffer.shape[1], size[1])
            try:
                grown = np.empty(shape, buffer.dtype)
            except MemoryError as wrong:
                raise CapacityError(
                    tier="token bias", need=int(np.prod(shape)) * buffer.itemsize, free=0, unit="more bytes",
                    hint="this machine's memory is full; retire or crop rows",
                ) from wrong  # fmt: skip
            for place, count in held.items():
                grown[place, :, :count] = buffer[place, :, :count]
            made.append(grown)
        # All layers or none: the first one's size speaks for all.
        self._buffers = made
