"""Rows that have a length and no history: random values in memory, slots as if a trace had long been played."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.kernels.tables import DeviceSlots
from sparda_core.runtimes.gpu.session import GpuSession


def claim_rows(session: GpuSession, cell: Cell) -> None:
    """As many rows as the cell has, each of its context's length."""
    for _ in range(cell.batch):
        session.claim(cell.context)


def fill_random(session: GpuSession, seed: int) -> None:
    """Random keys, values and entries wherever a step reads on the device."""
    tiers = session.machinery.tiers
    draw = torch.Generator(session.machinery.device).manual_seed(seed)
    done: set[int] = set()
    for layer in tiers.layers:
        arrays = [layer.entries, layer.ring]
        arrays += [part for part in (layer.bias, layer.means) if part is not None]
        arrays += [part.array for part in (layer.device, layer.slots) if part is not None]
        for array in arrays:
            if array.data_ptr() not in done:
                done.add(array.data_ptr())
                _fill(array, draw)


def _fill(array: torch.Tensor, draw: torch.Generator) -> None:
    """Normal values, in pieces: a random generator of a whole store would take memory of its own."""
    each = max(1, (1 << 27) // max(1, array[0].numel()))
    for start in range(0, array.shape[0], each):
        array[start : start + each].normal_(generator=draw)


def warm_slots(session: GpuSession, trace: BatchTrace) -> None:
    """Slots as they stand before the trace's first step, and the session's count of steps with them.

    The selector must be Traced(before=trace.history): ticks of warm blocks lie before the first step's, and none is
    negative, since kernels take an empty slot before the oldest block by that.
    """
    machinery = session.machinery
    tail = session.spec.block_count(session.length(session.rows[0])) - 1
    for number, layer in enumerate(machinery.tiers.layers):
        if layer.slots is not None:
            held = trace.held(layer.slots.held.shape[2], machinery.runtime.policy)[trace.streams[number]]
            put_in_slots(layer.slots, held, trace.used(held.shape[2]))
            assert bool((layer.slots.held == tail).any(-1).all()), "the tail block must have its slot"
    machinery.rows.tick.fill_(trace.history)


def put_in_slots(slots: DeviceSlots, held: npt.NDArray[np.int32], used: npt.NDArray[np.int32]) -> None:
    """Write who sits where.

    held  int32 [B, Hk, S], logical blocks, -1 for none, none twice
    used  int32 [S], the step in which each was selected last
    """
    device = slots.held.device
    there = torch.from_numpy(held).to(device)
    assert there.shape == slots.held.shape, "slots of another batch"
    slots.held.copy_(there)
    slots.used.copy_(torch.from_numpy(used).to(device).expand_as(there))
    # Slots that hold nothing write into a column of their own: no block may be written twice.
    blocks = slots.where.shape[2]
    where = slots.where.new_full((*slots.where.shape[:2], blocks + 1), -1)
    number_of = torch.arange(held.shape[2], dtype=torch.int32, device=device).expand_as(there)
    where.scatter_(2, torch.where(there >= 0, there, blocks).long(), number_of)
    slots.where.copy_(where[..., :blocks])
