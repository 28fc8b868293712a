"""RowSnapshot: one row's cache, taken out of a session so that another can continue it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True, eq=False)
class RowSnapshot:
    """State of a row after `tokens` tokens, independent of runtime and selector.

    keys, values  [L, Hk, tokens, D], post-RoPE
    queries       [L, Hq, n, D], post-RoPE queries of the prompt's first n tokens (n may be 0), for
                  selectors that calibrate on them
    bias          [L, Hk, tokens], token biases; None where the model has none
    """

    tokens: int
    keys: npt.NDArray[np.floating]
    values: npt.NDArray[np.floating]
    queries: npt.NDArray[np.floating]
    bias: npt.NDArray[np.floating] | None = None

    def plain(self) -> RowSnapshot:
        """The same as arrays that torch can take over as they are: C order, writable, of a dtype that it knows."""
        bias = None if self.bias is None else _plain(self.bias)
        return attrs.evolve(
            self, keys=_plain(self.keys), values=_plain(self.values), queries=_plain(self.queries), bias=bias
        )


def _plain(array: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    dtype = np.dtype(f"f{array.dtype.itemsize}") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    return np.require(array, dtype, ["C", "W"])


class PromptQueries:
    """The first `limit` prompt queries of each row, layer by layer, for snapshots."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[int, dict[int, list[torch.Tensor]]] = {}

    def see(self, row: int, layer: int, query: torch.Tensor, start: int) -> None:
        """Keep what is still wanted of query [1, Hq, T, D], whose first token has position `start`.

        Queries after a gap (tokens that were decoded, not read) are not kept.
        """
        kept = self._rows.setdefault(row, {}).setdefault(layer, [])
        have = sum(part.shape[1] for part in kept)
        if have == start and have < self._limit:
            kept.append(query[0, :, : self._limit - have].clone())

    def of(self, row: int, layer: int) -> Sequence[torch.Tensor]:
        """Parts [Hq, n, D] kept of a row's layer, in order."""
        return self._rows.get(row, {}).get(layer, ())

    def forked(self, source: int, copy: int) -> None:
        """Row `copy` starts as a copy of `source`."""
        if source in self._rows:
            self._rows[copy] = {layer: list(parts) for layer, parts in self._rows[source].items()}

    def cropped(self, row: int, tokens: int) -> None:
        """Forget what lies beyond the first `tokens` tokens."""
        for parts in self._rows.get(row, {}).values():
            left = tokens
            for i, part in enumerate(parts):
                parts[i] = part[:, : max(0, left)]
                left -= part.shape[1]

    def retired(self, row: int) -> None:
        """Forget a row."""
        self._rows.pop(row, None)
