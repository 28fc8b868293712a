"""Selections, and the three kinds of block number that must never be mixed up."""

from __future__ import annotations

from typing import NewType

import numpy as np
import numpy.typing as npt

from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

# Logical block b of a row holds its tokens [b * block, (b + 1) * block).
LogicalBlock = NewType("LogicalBlock", int)
# Position of a block in the paged host store: page * page_blocks + offset in the page.
HostBlock = NewType("HostBlock", int)
# Position of a block in a device pool.
DeviceSlot = NewType("DeviceSlot", int)

#: Pads a selection that has fewer blocks than its width.
NO_BLOCK = -1

Selection = npt.NDArray[np.int32]


def check_selection(ids: Selection, *, spec: BlockSpec, positions: npt.NDArray[np.int64]) -> None:
    """Raise ConfigError unless `ids` is a lawful selection.

    ids        int32 [B, Hk, T, budget]: ascending logical ids, then -1
    positions  int64 [B, T]: absolute position of each query; a negative one marks an inactive row,
               which must select nothing
    Lawful: no repeats, no future block, every forced block present, width <= spec.budget.
    """
    if ids.ndim != 4 or ids.dtype != np.int32:
        raise ConfigError(f"selection has dtype={ids.dtype}, shape={ids.shape}; want int32 [B, Hk, T, budget]")
    if ids.shape[-1] > spec.budget:
        raise ConfigError(f"selection is {ids.shape[-1]} wide but budget={spec.budget}")
    for (row, head, query), _ in np.ndenumerate(ids[..., 0]):
        _check_one(ids[row, head, query], spec=spec, position=int(positions[row, query]), head=head)


def _check_one(ids: Selection, *, spec: BlockSpec, position: int, head: int) -> None:
    chosen = ids[ids != NO_BLOCK]
    where = f"head {head}, position {position}"
    if (ids[: chosen.size] == NO_BLOCK).any() or (np.diff(chosen) <= 0).any() or (chosen < 0).any():
        raise ConfigError(f"selection at {where} must be ascending without repeats, -1 last: {ids.tolist()}")
    if position < 0:
        if chosen.size:
            raise ConfigError(f"selection at {where} must be empty: the row is inactive")
        return
    if chosen.size and chosen[-1] > position // spec.block:
        raise ConfigError(f"selection at {where} holds future block {chosen[-1]} (current {position // spec.block})")
    missing = set(spec.forced_blocks(position)) - set(chosen.tolist())
    if missing:
        raise ConfigError(f"selection at {where} lacks forced blocks {sorted(missing)}")


def fresh_blocks(ids: Selection, previous: Selection) -> npt.NDArray[np.int64]:
    """Blocks of each selection that were not in the row's previous one.

    ids, previous  int32 [..., budget], -1 padded, same leading shape
    returns        int64 [...]; divided by the selection's size this is the churn
    """
    hit = (ids[..., :, None] == previous[..., None, :]).any(-1)
    fresh: npt.NDArray[np.int64] = ((ids != NO_BLOCK) & ~hit).sum(-1)
    return fresh
