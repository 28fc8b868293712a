"""A layer's list of misses on its way to the host, and memory that copies to the device go through."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.errors import LaneError
from sparda_core.kernels.early import AT_END
from sparda_core.kernels.tables import DeviceDiff
from sparda_core.kernels.tell.gpu import tell_list

Ints = npt.NDArray[np.int64]


#: Where a list's length stands when nothing was told since it was last read.
_NOTHING_TOLD = -1
#: Integers of a line that the device writes over the link at once: each part of a list begins one.
_LINE = 32


class HostList:
    """One layer's list in memory of the host that the device writes. Whoever reads waits for the device first."""

    def __init__(self, diff: DeviceDiff) -> None:
        on_gpu, self._most = diff.count.device.type == "cuda", diff.source.numel()
        room = -(-self._most // _LINE) * _LINE
        memory = torch.full((_LINE + 2 * room,), _NOTHING_TOLD, dtype=torch.int32, pin_memory=on_gpu)
        self._there = memory[:1], memory[_LINE:].view(2, room)
        self._count, self._ids = (part.numpy() for part in self._there)

    def tell(self, diff: DeviceDiff, *, early: int = AT_END) -> None:
        """Issue what writes list and length to the current stream; nothing is awaited, so it may be captured."""
        tell_list(diff, *self._there, early=early)

    def told(self) -> tuple[Ints, Ints]:
        """What the device has told since the last call: (blocks of host memory, slots), copies of the caller's own.

        Raises LaneError where it has told nothing: nobody waited for it.
        """
        count = int(self._count[0])
        if not 0 <= count <= self._most:
            raise LaneError(
                f"a list of misses says that it holds {count} blocks, of at most {self._most}: it was read before the "
                "device had told it; wait for the mark behind it"
            )
        source, target = self._ids[:, :count].astype(np.int64)
        self._count[0] = _NOTHING_TOLD
        return source, target


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
