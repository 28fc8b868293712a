"""From logical blocks and rows to where they lie, and back to whole keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.runtimes.bias_store import BiasStore
from sparda_core.runtimes.block_store import BlockStore

Ints = npt.NDArray[np.int64]


def keys_of(
    store: BlockStore, layer: int, rows: Sequence[int], lengths: Ints, fresh: torch.Tensor | None, *, stored: bool
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """() -> (keys [B, Hk, N, D], counts int64 [B]): every key of a layer known now; NaN beyond a row's count.

    lengths  int64 [B], tokens in the cache before this step
    fresh    [B, Hk, T, D], this step's own keys, None where the layer has not made them yet
    stored   whether the store holds the fresh ones already
    """

    def keys() -> tuple[torch.Tensor, torch.Tensor]:
        added = 0 if fresh is None else fresh.shape[2]
        parts = []
        for i, row in enumerate(rows):
            stop = int(lengths[i]) + (added if stored else 0)
            part = torch.from_numpy(store.read_keys(layer, row, 0, stop))
            parts.append(part if fresh is None or stored else torch.cat((part, fresh[i]), dim=1))
        width = max(part.shape[1] for part in parts)
        padded = parts[0].new_full((len(parts), parts[0].shape[0], width, parts[0].shape[2]), float("nan"))
        for i, part in enumerate(parts):
            padded[i, :, : part.shape[1]] = part
        return padded, torch.from_numpy(lengths + added)

    return keys


def bias_of(
    store: BiasStore | None, layer: int, rows: Sequence[int], counts: Ints
) -> Callable[[], torch.Tensor | None]:
    """() -> [B, Hk, N], biases of each row's first `counts` tokens, NaN beyond; None without a store."""

    def biases() -> torch.Tensor | None:
        if store is None:
            return None
        parts = [store.of(layer, row, int(count)) for row, count in zip(rows, counts, strict=True)]
        padded = parts[0].new_full((len(parts), parts[0].shape[0], int(counts.max())), float("nan"))
        for i, part in enumerate(parts):
            padded[i, :, : part.shape[1]] = part
        return padded

    return biases


def take_blocks(table: Ints, chosen: npt.NDArray[np.int32]) -> Ints:
    """Look selected blocks up in one row's table.

    table   int64 [Hk, blocks], logical block -> physical
    chosen  int32 [Hk, T, W]; -1 stays -1
    """
    flat = np.maximum(chosen, 0).reshape(table.shape[0], -1)
    found = np.take_along_axis(table, flat, axis=1).reshape(chosen.shape)
    found[chosen < 0] = -1
    return found


def visible_tokens(chosen: npt.NDArray[np.int32], positions: Ints, block: int) -> npt.NDArray[np.int32]:
    """Tokens of each selected block that the query may see, from the block's start: int32 [B, Hk, T, W].

    positions  int64 [B, T]; an empty place (-1) shows none
    """
    shown = np.clip(positions[:, None, :, None] + 1 - chosen.astype(np.int64) * block, 0, block)
    return np.where(chosen < 0, 0, shown).astype(np.int32)
