"""A layer's entries as CPU kernels read them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.arrays import compute_dtype, host_array
from sparda_core.kernels.checks import require_ids, require_shape
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True)
class EntryArrays:
    """Entries in place, and how many of them each query sees.

    dtype    what the scoring computes in
    buffer   [R, Hk, capacity, D] of that dtype
    rows     int64 [B], where each batch row lies in `buffer`
    visible  int64 [B, T]: a query sees the first `visible` entries of its row; 0 for an inactive row
    blocks   M, blocks up to that of the latest query
    """

    dtype: torch.dtype
    buffer: npt.NDArray[Any]
    rows: npt.NDArray[np.int64]
    visible: npt.NDArray[np.int64]
    blocks: int

    def pooled(self, heads: int) -> npt.NDArray[Any]:
        """[B, heads, T, M], all -inf: block scores before any entry was seen."""
        batch, queries = self.visible.shape
        return np.full((batch, heads, queries, self.blocks), -np.inf, dtype=self.buffer.dtype)


def entry_arrays(query: torch.Tensor, entries: EntryView, positions: torch.Tensor, spec: BlockSpec) -> EntryArrays:
    """Check and view the entries for scoring `query` [B, heads, T, D]; raises ConfigError on what does not fit.

    A buffer of another dtype than the one computed in, or not contiguous, is gathered into a copy of
    the rows asked for; its values, hence the scores, stay the same.
    """
    batch, _, queries, width = query.shape
    require_shape(entries.buffer, "entries", R=None, Hk=None, capacity=None, D=width)
    require_shape(entries.rows, "entries.rows", B=batch)
    require_shape(entries.counts, "entries.counts", B=batch)
    require_shape(positions, "positions", B=batch, T=queries)
    dtype = compute_dtype(query, entries.buffer)
    rows, counts = host_array(entries.rows, torch.int64), host_array(entries.counts, torch.int64)
    require_ids(rows, "entries.rows", low=0, high=entries.buffer.shape[0])
    require_ids(counts, "entries.counts", low=0, high=entries.buffer.shape[2] + 1)
    buffer = entries.buffer
    if buffer.dtype != dtype or not buffer.is_contiguous():
        buffer, rows = entries.padded(), np.arange(batch)
    where = host_array(positions, torch.int64)
    ended = np.maximum(0, (where + 1 - spec.window) // spec.stride + 1)
    return EntryArrays(
        dtype=dtype, buffer=host_array(buffer, dtype), rows=rows, visible=np.minimum(ended, counts[:, None]),
        blocks=int(where.max()) // spec.block + 1 if where.size else 0,
    )  # fmt: skip
