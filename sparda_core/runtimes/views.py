"""From tiers to what a selector may see, and from logical blocks to where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.layer_view import LayerView
from sparda_core.plan import Phase
from sparda_core.runtimes.block_store import BlockStore
from sparda_core.runtimes.tiers import Tiers

Ints = npt.NDArray[np.int64]


def make_view(
    model: Any, tiers: Tiers, *, target: int, source: int, phase: Phase, rows: tuple[int, ...], lengths: Ints,
    positions: torch.Tensor, made: Any, forecast: torch.Tensor | None, appended: bool,
) -> LayerView:  # fmt: skip
    """A LayerView for one selection.

    lengths   int64 [B], tokens in the cache before this step
    made      the source layer's Projections
    appended  whether the new tokens of `target` are in the store already
    """
    own = target == source
    return LayerView(
        layer=target, source=source, phase=phase, spec=tiers.spec, rows=rows, positions=positions,
        x=made.x_norm, query=made.q if own else None, forecast=forecast,
        entries=tiers.entries.view(target, rows), query_of=model.query_of,
        keys=_keys_of(tiers, target, rows, lengths, made.k if own else None, appended),
    )  # fmt: skip


def _keys_of(
    tiers: Tiers, layer: int, rows: tuple[int, ...], lengths: Ints, fresh: torch.Tensor | None, appended: bool
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def keys() -> tuple[torch.Tensor, torch.Tensor]:
        added = 0 if fresh is None else fresh.shape[2]
        counts = torch.from_numpy(lengths + added)
        parts = []
        for i, row in enumerate(rows):
            stop = int(lengths[i]) + (added if appended else 0)
            part = torch.from_numpy(tiers.store(layer).read(layer, row, 0, stop)[0])
            if fresh is not None and not appended:
                part = torch.cat((part, fresh[i]), dim=1)
            parts.append(part)
        width = max(part.shape[1] for part in parts)
        padded = parts[0].new_full((len(parts), parts[0].shape[0], width, parts[0].shape[2]), float("nan"))
        for i, part in enumerate(parts):
            padded[i, :, : part.shape[1]] = part
        return padded, counts

    return keys


def locate(store: BlockStore, layer: int, rows: Sequence[int], chosen: npt.NDArray[np.int32]) -> Ints:
    """Where selected blocks lie in a store: int64 like `chosen` [B, Hk, T, W]; -1 stays -1."""
    found = np.empty(chosen.shape, np.int64)
    for i, row in enumerate(rows):
        table = store.physical(layer, row)
        flat = np.maximum(chosen[i], 0).reshape(table.shape[0], -1)
        found[i] = np.take_along_axis(table, flat, axis=1).reshape(chosen[i].shape)
    found[chosen < 0] = -1
    return found


def visible_tokens(chosen: npt.NDArray[np.int32], positions: Ints, block: int) -> npt.NDArray[np.int32]:
    """Tokens of each selected block that the query may see, from the block's start: int32 [B, Hk, T, W].

    positions  int64 [B, T]; an empty place (-1) shows none
    """
    shown = np.clip(positions[:, None, :, None] + 1 - chosen.astype(np.int64) * block, 0, block)
    return np.where(chosen < 0, 0, shown).astype(np.int32)
