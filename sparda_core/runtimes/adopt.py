"""Rows into snapshots, and snapshots into rows."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.plan import Phase
from sparda_core.runtimes.snapshot import PromptQueries, RowSnapshot
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import make_view
from sparda_core.selector import BoundSelector


Floats = npt.NDArray[np.floating]


@attrs.frozen(kw_only=True, eq=False)
class _Given:
    """What a snapshot has in place of a layer's projections."""

    x_norm: torch.Tensor
    q: torch.Tensor | None
    k: torch.Tensor


def take_snapshot(tiers: Tiers, queries: PromptQueries, row: int, tokens: int) -> RowSnapshot:
    """Copy a row out of its tiers."""
    keys, values, kept = [], [], []
    for layer in range(tiers.shape.layers):
        key, value = tiers.store(layer).read(layer, row, 0, tokens)
        keys.append(key)
        values.append(value)
        parts = queries.of(row, layer)
        empty = torch.empty(tiers.shape.q_heads, 0, tiers.shape.head_dim)
        kept.append(torch.cat(list(parts), dim=1).numpy() if parts else empty.numpy())
    return RowSnapshot(tokens=tokens, keys=np.stack(keys), values=np.stack(values), queries=np.stack(kept))


def adopt_row(model: Any, tiers: Tiers, selector: BoundSelector, row: int, snapshot: RowSnapshot) -> None:
    """Fill an empty row of `tiers` from a snapshot, and let the selector see it as a prompt."""
    shape = tiers.shape
    want = (shape.layers, shape.kv_heads, snapshot.tokens, shape.head_dim)
    if snapshot.keys.shape != want or snapshot.values.shape != want:
        raise ConfigError(f"snapshot has keys {snapshot.keys.shape}, this model needs {want}: take it from this model")
    tiers.reserve([(row, snapshot.tokens)])
    seen = min(snapshot.queries.shape[2], snapshot.tokens)
    for layer in range(shape.layers):
        # As two prompt chunks: the tokens whose queries were kept, then the others.
        for start, stop in ((0, seen), (seen, snapshot.tokens)):
            if start < stop:
                queries = snapshot.queries[layer, :, start:stop] if stop == seen else None
                part = (np.ascontiguousarray(kv[layer, None, :, start:stop]) for kv in (snapshot.keys, snapshot.values))
                _append_part(model, tiers, selector, layer, row, start, queries, *part)
    tiers.refresh(row, snapshot.tokens, stale_from=0)


def _append_part(
    model: Any, tiers: Tiers, selector: BoundSelector, layer: int, row: int, start: int,
    queries: Floats | None, key: Floats, value: Floats,
) -> None:  # fmt: skip
    store, positions = tiers.store(layer), start + np.arange(key.shape[2])[None]

    def recent(_: int, first: int, last: int) -> Floats:
        return store.read(layer, row, first, last)[0]

    tiers.entries.extend(layer, (row,), key, np.array([start]), recent)
    given = _Given(
        x_norm=torch.empty(1, key.shape[2], tiers.shape.hidden),
        q=None if queries is None else torch.from_numpy(queries[None]),
        k=torch.from_numpy(key),
    )
    view = make_view(
        model, tiers, target=layer, source=layer, phase=Phase.PREFILL, rows=(row,), lengths=np.array([start]),
        positions=torch.from_numpy(positions), made=given, forecast=None, appended=False,
    )  # fmt: skip
    selector.observe(view, given.k)
    where = store.physical_at(layer, (row,), positions)
    append_tokens(store.array, where, positions % tiers.spec.block, key, value)
