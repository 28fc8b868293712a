"""Where blocks lie, as kernels read it: page tables, slot tables, lists of misses. All tensors on the device.

B places for rows (a place without an active row has position -1), Hk KV heads, W budget, S slots of a
(row, head), P pages of a (row, head), M blocks that a row may reach, D head dim. Ids are int32; a kernel
widens them to 64 bits before it multiplies.
"""

from __future__ import annotations

import attrs
import torch


@attrs.frozen(kw_only=True, eq=False)
class Paged:
    """Blocks of one layer in pages, found through a page table.

    array        [n, 2, block, D], axis 1 is K, V; on the device, or pinned host memory that kernels reach
                 over the link; uint8 where it holds float8 (e4m3)
    table        int32 [B, Hk, P], page of each (row, head); -1 where there is none
    page_blocks  blocks per page: block b of a row lies at table[.., b // page_blocks] * page_blocks + b % page_blocks
    scales       float32 [n, 2] on the device, what a float8 value is multiplied by; None for other dtypes
    """

    array: torch.Tensor
    table: torch.Tensor
    page_blocks: int
    scales: torch.Tensor | None = None


@attrs.frozen(kw_only=True, eq=False)
class DeviceSlots:
    """Slots of one layer: who sits where. Changed in place by the diff kernel.

    array  [B * Hk * S, 2, block, D]; slot s of (b, h) lies at (b * Hk + h) * S + s
    held   int32 [B, Hk, S], logical block in each slot, -1 = empty; no block twice in a (row, head)
    used   int32 [B, Hk, S], tick at which the slot's block was last selected
    where  int32 [B, Hk, M], slot (0 .. S - 1) of each logical block, -1 = none: the inverse of `held`
    """

    array: torch.Tensor
    held: torch.Tensor
    used: torch.Tensor
    where: torch.Tensor


@attrs.frozen(kw_only=True, eq=False)
class DeviceDiff:
    """What a diff leaves for the copy, the append and attention of one layer. Written by the diff kernel.

    physical  int32 [B, Hk, W], index into `DeviceSlots.array` of each selected block, -1 for none
    tail      int32 [B, Hk], the same for the row's current block (the last one selected); -1 for an inactive row
    source    int32 [B * Hk * W], compacted over all rows and heads: block of the host array to move, and
    target    int32 [B * Hk * W], index into `DeviceSlots.array` where it goes. Order is free
    count     int32 [1], length of that list. The diff adds to it: `begin_step` zeroes it
    misses    int32 [B, Hk], blocks of the list by row and head
    opened    int32 [B, Hk], 1 where the step's own token opened a block (a slot, no transfer)
    """

    physical: torch.Tensor
    tail: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    count: torch.Tensor
    misses: torch.Tensor
    opened: torch.Tensor


#: Columns of `LayerLists.signals`; the fourth is room, so that each layer's lie at a multiple of 16 bytes.
COUNT, ARRIVED, DONE, SIGNALS = 0, 1, 2, 4


@attrs.frozen(kw_only=True, eq=False)
class LayerLists:
    """The lists of misses of all offloaded layers of a step, in the order in which layers run. L of them.

    target      [L, n, 2, block, D], `DeviceSlots.array` of each layer
    source_ids  int32 [L, most], `DeviceDiff.source` of each layer, and
    target_ids  int32 [L, most], `DeviceDiff.target`
    signals     int32 [L, 4]: COUNT, the list's length (`DeviceDiff.count`); ARRIVED, programs of the diff that have
                written all of theirs; DONE, thread blocks of the copy that have moved all of theirs. `begin_step`
                zeroes them
    """

    target: torch.Tensor
    source_ids: torch.Tensor
    target_ids: torch.Tensor
    signals: torch.Tensor
