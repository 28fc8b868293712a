"""A layer's list of misses on its way to the host, and memory that copies to the device go through."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.kernels.tables import DeviceDiff

Ints = npt.NDArray[np.int64]


class HostList:
    """One layer's list. It comes down whole, however long: then the host waits once, for list and length together."""

    def __init__(self, diff: DeviceDiff) -> None:
        on_gpu, most = diff.count.device.type == "cuda", diff.source.numel()
        # Pinned: into other memory a copy is awaited at once.
        here = torch.empty(2 * most + 1, dtype=torch.int32, pin_memory=on_gpu)
        self._here = here[:1], here[1 : most + 1], here[most + 1 :]
        self._count, self._source, self._target = (part.numpy() for part in self._here)
        self._came = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self.asked = False

    def ask(self, diff: DeviceDiff) -> None:
        """Issue the copies of list and length to the current stream; nothing is awaited."""
        for here, there in zip(self._here, (diff.count, diff.source, diff.target), strict=True):
            here.copy_(there, non_blocking=True)
        if self._came is not None:
            self._came.record()
        self.asked = True

    def told(self) -> tuple[Ints, Ints]:
        """Wait for what was asked for. (blocks of host memory, slots), copies of the caller's own."""
        if self._came is not None:
            self._came.synchronize()
        self.asked = False
        count = int(self._count[0])
        return self._source[:count].astype(np.int64), self._target[:count].astype(np.int64)


class Staging:
    """Host memory that blocks are gathered into, and device memory that one copy brings them to. Grows by doubling."""

    def __init__(self) -> None:
        self._host = self._there = torch.empty(0)
        self._read: torch.cuda.Event | None = None

    def room(self, blocks: int, like: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for `blocks` rows as wide as `like`'s, on the host and on the device, once the last copy has read it."""
        if self._read is not None:
            self._read.synchronize()
        if self._host.shape[0] < blocks:
            size = (max(blocks, 2 * self._host.shape[0]), like.shape[1])
            self._host = torch.empty(size, dtype=like.dtype, pin_memory=device.type == "cuda")
            self._there = torch.empty(size, dtype=like.dtype, device=device)
        return self._host[:blocks], self._there[:blocks]

    def reads(self) -> None:
        """What was issued to the current stream so far reads the host's memory."""
        if self._there.device.type == "cuda":
            if self._read is None:
                self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._read.record()
