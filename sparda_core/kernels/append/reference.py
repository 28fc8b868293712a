"""Writing the keys and values of new tokens, one token at a time; and what a GPU does in the same launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.append.store import FusedHeads, Store
from sparda_core.kernels.tables import Paged
from sparda_core.shapes import BlockSpec


def append_tokens(
    pool: npt.NDArray[Any],
    physical: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    key: npt.NDArray[Any],
    value: npt.NDArray[Any],
) -> None:
    """Write each new token's key and value to its block, in place.

    pool        float [n, 2, block, D], K then V
    physical    int64 [B, Hk, T], index into pool of the block each token goes to; -1 skips the token
    offsets     int64 [B, T], place inside that block
    key, value  float [B, Hk, T, D], rounded to the dtype of the pool
    """
    for (row, head, t), block in np.ndenumerate(physical):
        if block >= 0:
            pool[block, 0, offsets[row, t]] = key[row, head, t]
            pool[block, 1, offsets[row, t]] = value[row, head, t]


def rotate_heads(
    proj: torch.Tensor, *, heads: FusedHeads, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """A fused product [B, F], rotated where it carries positions -> [B, heads.total, D], in the tables' dtype.

    position  int [B]; -1: zeros
    """
    out = torch.zeros(proj.shape[0], heads.total, cos.shape[1], dtype=cos.dtype)
    for row, here in enumerate(position.tolist()):
        if here >= 0:
            wide = proj[row].view(heads.total, -1).to(cos.dtype)
            out[row] = wide * cos[here] + wide.roll(wide.shape[-1] // 2, -1) * sin[here]
            out[row, -heads.kv :] = wide[-heads.kv :]
    return out


def keep_keys(
    key: torch.Tensor, position: torch.Tensor, entries: torch.Tensor, ring: torch.Tensor, spec: BlockSpec
) -> None:
    """Put each place's key [B, Hk, D] into its ring, and the mean of the ring where that completes an entry."""
    for row, here in enumerate(position.tolist()):
        if here < 0:
            continue
        ring[row, :, here % spec.window] = key[row]
        first = here + 1 - spec.window
        if first >= 0 and first % spec.stride == 0:
            entries[row, :, first // spec.stride] = ring[row].double().mean(1).to(entries.dtype)


def store_tokens(key: torch.Tensor, value: torch.Tensor, position: torch.Tensor, store: Store) -> None:
    """Write K and V [B, Hk, D] of each place's token to `store`: device place, and host where it has one."""
    for row, here in enumerate(position.tolist()):
        for head in range(key.shape[1]) if here >= 0 else ():
            token = torch.stack((key[row, head], value[row, head]))
            for pages in (store.device, store.host):
                if pages is not None:
                    _write(pages.array, _page_block(pages, row, head, here // pages.array.shape[2]), here, token)
            if store.slots is not None and store.tail is not None:
                _write(store.slots, int(store.tail[row, head]), here, token)


def _page_block(pages: Paged, row: int, head: int, block: int) -> int:
    page = int(pages.table[row, head, block // pages.page_blocks])
    return -1 if page < 0 else page * pages.page_blocks + block % pages.page_blocks


def _write(array: torch.Tensor, block: int, here: int, token: torch.Tensor) -> None:
    if block >= 0:
        array[block, :, here % array.shape[2]] = token.to(array.dtype)
