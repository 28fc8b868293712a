"""Rows into snapshots, and snapshots into rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import ConfigError
from sparda_core.kernels.append.cpu import append_tokens
from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.runtimes.snapshot import PromptQueries, RowSnapshot
from sparda_core.runtimes.tiers import Tiers
from sparda_core.runtimes.views import keys_of
from sparda_core.selector import BoundSelector
from sparda_core.shapes import ModelShape

Floats = npt.NDArray[np.floating]
QueryOf = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


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
    bias = None
    if tiers.bias is not None:
        bias = np.stack([tiers.bias.of(layer, row, tokens).numpy() for layer in range(tiers.shape.layers)])
    return RowSnapshot(
        tokens=tokens, keys=np.stack(keys), values=np.stack(values), queries=np.stack(kept), bias=bias
    )


def check_snapshot(snapshot: RowSnapshot, shape: ModelShape) -> None:
    """Raise ConfigError unless the snapshot is of a model of this shape: kernels trust its sizes."""
    if not isinstance(snapshot, RowSnapshot):
        raise ConfigError(f"snapshot={snapshot!r} must be what `snapshot` of a session gave")
    want = (shape.layers, shape.kv_heads, snapshot.tokens, shape.head_dim)
    seen = np.shape(snapshot.queries)[2] if np.ndim(snapshot.queries) == 4 else 0
    sizes: dict[str, tuple[int, ...]] = {
        "keys": want, "values": want, "queries": (shape.layers, shape.q_heads, seen, shape.head_dim)
    }  # fmt: skip
    if (snapshot.bias is None) == shape.token_bias:
        has, wants = ("no", "one") if shape.token_bias else ("a", "none")
        raise ConfigError(f"snapshot has {has} token bias, this model needs {wants}: take it from this model")
    if snapshot.bias is not None:
        sizes["bias"] = (shape.layers, shape.kv_heads, snapshot.tokens)
    for name, size in sizes.items():
        array = getattr(snapshot, name)
        if np.shape(array) != size or not np.issubdtype(array.dtype, np.floating):
            raise ConfigError(
                f"snapshot has {name} {getattr(array, 'dtype', '')}{list(np.shape(array))}, this model needs "
                f"floating-point {list(size)}: take it from this model"
            )


def adopt_row(query_of: QueryOf, tiers: Tiers, selector: BoundSelector, row: int, snapshot: RowSnapshot) -> None:
    """Fill an empty row of `tiers` from a snapshot, and let the selector see it as a prompt."""
    shape = tiers.shape
    check_snapshot(snapshot, shape)
    tiers.reserve([(row, snapshot.tokens)])
    seen = min(snapshot.queries.shape[2], snapshot.tokens)
    for layer in range(shape.layers):
        # As two prompt chunks: the tokens whose queries were kept, then the others.
        for start, stop in ((0, seen), (seen, snapshot.tokens)):
            if start < stop:
                dtype = tiers.store(layer).array.dtype
                queries = snapshot.queries[layer, :, start:stop].astype(dtype) if stop == seen else None
                part = (
                    np.ascontiguousarray(kv[layer, None, :, start:stop], dtype)
                    for kv in (snapshot.keys, snapshot.values)
                )
                bias = None if snapshot.bias is None else snapshot.bias[layer, None, :, start:stop].astype(dtype)
                _append_part(query_of, tiers, selector, (layer, row, start), queries, *part, bias=bias)
    tiers.refresh(row, snapshot.tokens, stale_from=0)


def _append_part(
    query_of: QueryOf, tiers: Tiers, selector: BoundSelector, place: tuple[int, int, int],
    queries: Floats | None, key: Floats, value: Floats, *, bias: Floats | None,
) -> None:  # fmt: skip
    layer, row, start = place
    store, positions = tiers.store(layer), start + np.arange(key.shape[2])[None]

    def recent(_: int, first: int, last: int) -> Floats:
        return store.read_keys(layer, row, first, last)

    tiers.entries.extend(layer, (row,), key, np.array([start]), recent)
    if tiers.bias is not None and bias is not None:
        tiers.bias.extend(layer, (row,), torch.from_numpy(bias), np.array([start]))
    fresh = torch.from_numpy(key)
    view = LayerView(
        layer=layer, source=layer, phase=Phase.PREFILL, spec=tiers.spec, rows=(row,),
        positions=torch.from_numpy(positions), x=fresh.new_empty(1, key.shape[2], tiers.shape.hidden),
        query=None if queries is None else torch.from_numpy(queries[None]), forecast=None,
        entries=tiers.entries.view(layer, (row,)), query_of=query_of,
        keys=keys_of(store, layer, (row,), np.array([start]), fresh, stored=False),
    )  # fmt: skip
    selector.observe(view, fresh)
    where = store.physical_at(layer, (row,), positions)
    append_tokens(store.array, where, positions % tiers.spec.block, key, value)
