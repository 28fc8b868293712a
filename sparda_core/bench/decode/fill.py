"""Rows that have a length and no history: random values in memory, slots as if a trace had long been played."""

from __future__ import annotations

import torch

from sparda_core.bench.decode.cell import Cell
from sparda_core.bench.decode.trace import BatchTrace
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
    """Slots as they stand before the trace's first step, the last selected block in the lowest slot."""
    tiers = session.machinery.tiers
    tail = session.spec.block_count(session.length(session.rows[0])) - 1
    for number, layer in enumerate(tiers.layers):
        slots = layer.slots
        if slots is None:
            continue
        width = slots.held.shape[2]
        held = torch.from_numpy(trace.held(width)[trace.streams[number]]).to(slots.held.device)
        assert held.shape == slots.held.shape, "a trace of another batch"
        slots.held.copy_(held)
        # Ticks before the first step's, the last selected block the latest.
        slots.used.copy_(-torch.arange(width, dtype=torch.int32, device=held.device).expand_as(held))
        # Slots that hold nothing write into a column of their own: no block may be written twice.
        blocks = slots.where.shape[2]
        where = slots.where.new_full((*slots.where.shape[:2], blocks + 1), -1)
        number_of = torch.arange(width, dtype=torch.int32, device=held.device).expand_as(held)
        where.scatter_(2, torch.where(held >= 0, held, blocks).long(), number_of)
        slots.where.copy_(where[..., :blocks])
        assert bool((held == tail).any(-1).all()), "the tail block must have its slot"
