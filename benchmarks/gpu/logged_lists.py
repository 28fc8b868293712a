"""Logged copies of lists that are never used twice, over ranges of pinned memory as wide as wanted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from benchmarks.gpu.logged_copy import Log, logged_gather
from sparda_core.bench.gpu_calibration.copies import bytes_for
from sparda_core.bench.gpu_calibration.pool import KIB
from sparda_core.bench.gpu_clock import Launch, finish

Row = dict[str, Any]
#: (thread blocks, KiB in flight of each).
Few = tuple[int, int]
BLOCK_KIB = 32


class Memory(Protocol):
    """Pinned memory, and slots on the device."""

    @property
    def host(self) -> torch.Tensor:
        """uint8 [bytes]."""

    @property
    def slots(self) -> torch.Tensor:
        """uint8 [bytes]."""

    @property
    def device(self) -> torch.device:
        """Where kernels run."""


class Copies:
    """Logged copies of lists that are never used twice."""

    def __init__(self, pool: Memory, dtype: torch.dtype) -> None:
        shape = (-1, 2, BLOCK_KIB * KIB // 512, 128)
        self.source, self.slots = pool.host.view(dtype).view(shape), pool.slots.view(dtype).view(shape)
        self._device = pool.device

    def blocks(self, copy: Few, us: float) -> int:
        """Blocks that take about so long alone."""
        return max(16, int(bytes_for((*copy, BLOCK_KIB), us) / (BLOCK_KIB * KIB)) // 16 * 16)

    def made(self, copy: Few, count: int, *, range_bytes: int | None = None) -> tuple[Launch, Launch, Log]:
        """A copy, what gives it a new list, and its log."""
        ctas, kib = copy
        most = self.source.shape[0] if range_bytes is None else range_bytes // (BLOCK_KIB * KIB)
        count = min(count, self.slots.shape[0])
        ids = torch.zeros(2, count, dtype=torch.int32, device=self._device)
        length = torch.full((1,), count, dtype=torch.int32, device=self._device)
        log = Log(ctas, kib * KIB, self._device)

        def renew() -> None:
            ids[0].random_(0, most)
            ids[1].copy_(torch.randperm(self.slots.shape[0], device=self._device)[:count])
            log.clear()

        renew()
        run = functools.partial(logged_gather, self.source, self.slots, ids[0], ids[1], length, log)
        return run, renew, log

    def check(self) -> None:
        """Raise AssertionError unless the listed blocks arrive, and every thread block tells where it sat."""
        words = self.source.view(torch.int32).flatten(1)
        words[:, 0] = torch.arange(words.shape[0], dtype=torch.int32)
        for copy in ((2, 128), (3, 16)):
            ctas, kib = copy
            count = min(40, self.slots.shape[0])
            source = torch.randperm(min(words.shape[0], 1 << 20))[:count].int().to(self._device)
            target = torch.randperm(self.slots.shape[0])[:count].int().to(self._device)
            length = torch.full((1,), count, dtype=torch.int32, device=self._device)
            log = Log(ctas, kib * KIB, self._device)
            self.slots.zero_()
            logged_gather(self.source, self.slots, source, target, length, log)
            arrived = self.slots.view(torch.int32).flatten(1)[:, 0]
            want = torch.zeros_like(arrived)
            want[target.long()] = source
            assert torch.equal(arrived, want), f"{copy} moved other blocks than were listed"
            told = log.told()
            assert min(told["sms"]) >= 0, f"{copy}: a thread block left no log"


def alone(copies: Copies, few: Sequence[Few], ranges: Sequence[int | None], us: float) -> list[Row]:
    """Copies with nothing beside them, over lists of several ranges."""
    rows: list[Row] = []
    for copy, range_bytes in itertools.product(few, ranges):
        run, renew, log = copies.made(copy, copies.blocks(copy, us), range_bytes=range_bytes)
        run()
        for _ in range(3):
            renew()
            finish()
            run()
            finish()
            told = log.told(every=64)
            moved = copies.blocks(copy, us) * BLOCK_KIB * KIB
            told["gb_s"] = moved / max(1, max(told["ends"]) - min(told["starts"]))
            rows.append({"ctas": copy[0], "kib": copy[1], "range_bytes": range_bytes, **told})
    return rows
