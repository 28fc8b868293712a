"""RowBuffer: values of every token of several rows of one layer, growing as tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparda_core.kernels.inference import in_inference


class RowBuffer:
    """[R, Hk, capacity, width] that doubles where it must; a row keeps its place in R until it is dropped.

    Values at or beyond a row's length are undefined. No gradient flows through it, and rows may change
    inside and outside inference mode.
    """

    def __init__(self, *, kv_heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._values = torch.empty((0, kv_heads, 0, width), dtype=dtype, device=device)
        self._place: dict[int, int] = {}
        self._length: dict[int, int] = {}
        self._free: list[int] = []

    def length(self, row: int) -> int:
        """Tokens held for a row; 0 for one never seen."""
        return self._length.get(row, 0)

    def append(self, row: int, values: torch.Tensor) -> None:
        """Add tokens, [Hk, T, width]."""
        start = self.length(row)
        stop = start + values.shape[1]
        place = self._ensure(row, stop)
        self._write(place, start, values)
        self._length[row] = stop

    def copy(self, source: int, target: int) -> None:
        """Row `target` becomes a copy of row `source`."""
        if source in self._place:
            length = self.length(source)
            place = self._ensure(target, length)
            self._write(place, 0, self._values[self._place[source], :, :length])
            self._length[target] = length

    def crop(self, row: int, tokens: int) -> None:
        """Forget all but the first `tokens` tokens."""
        if row in self._length:
            self._length[row] = min(self._length[row], tokens)

    def drop(self, row: int) -> None:
        """Forget the row; its place goes to the next new one."""
        if row in self._place:
            self._free.append(self._place.pop(row))
            del self._length[row]

    def read(self, row: int) -> torch.Tensor:
        """[Hk, length, width], a copy."""
        if row not in self._place:
            return self._values.new_empty((self._values.shape[1], 0, self._values.shape[3]))
        return self._values[self._place[row], :, : self.length(row)].clone()

    def batch(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(values [B, Hk, capacity, width], int64 lengths [B]) of rows in this order.

        In place where the rows lie side by side, else a copy.
        """
        places = [self._ensure(row, 0) for row in rows]
        lengths = torch.tensor([self.length(row) for row in rows], dtype=torch.int64, device=self._values.device)
        first = places[0] if places else 0
        if places == list(range(first, first + len(places))):
            return self._values[first : first + len(places)], lengths
        return self._values[places], lengths

    def _ensure(self, row: int, tokens: int) -> int:
        if row not in self._place:
            self._place[row] = self._free.pop() if self._free else len(self._place)
            self._length[row] = 0
        self._grow(self._place[row] + 1, tokens)
        return self._place[row]

    def _grow(self, rows: int, tokens: int) -> None:
        have_rows, kv_heads, have_tokens, width = self._values.shape
        if rows <= have_rows and tokens <= have_tokens:
            return
        want_rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        want_tokens = have_tokens if tokens <= have_tokens else max(tokens, 2 * have_tokens)
        old = self._values

        def grown() -> torch.Tensor:
            made = old.new_empty((want_rows, kv_heads, want_tokens, width))
            made[:have_rows, :, :have_tokens] = old
            return made

        self._values = in_inference(grown)

    def _write(self, place: int, start: int, values: torch.Tensor) -> None:
        stop = start + values.shape[1]
        in_inference(lambda: self._values[place, :, start:stop].copy_(values))
