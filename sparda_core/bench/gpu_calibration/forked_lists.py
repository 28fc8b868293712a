"""Copies of lists as a session's diffs leave them, for graphs that are replayed with new ones every time."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.copies import bytes_for
from sparda_core.bench.gpu_calibration.pool import KIB, Pool
from sparda_core.bench.gpu_calibration.session_lists import SessionLists, layout_of
from sparda_core.bench.gpu_calibration.sizes import Copy, Sizes
from sparda_core.bench.gpu_clock import Launch
from sparda_core.kernels.gather.gpu import gather_blocks

#: Steps of a session whose lists are used one after the other, and again: gigabytes lie between two uses.
_STEPS = 8
#: Blocks of the longest list: 14 of a hundred selected ones are new in a layer of 24 rows.
MOST_BLOCKS = 640


class Listed:
    """Lists of all layers of a session, one after the other; shorter ones leave blocks out, here and there."""

    def __init__(self, sizes: Sizes, pool: Pool, block_kib: int) -> None:
        self.source, self.target = pool.cut(block_kib)
        layout = layout_of(sizes, self.source.shape[0], self.target.shape[0], 1)
        most = min(MOST_BLOCKS, max(1, layout.rows * layout.heads * sizes.spec.free // 2))
        drawn = SessionLists(sizes, layout, layers=layout.layers, count=most)
        self._lists = [one for _ in range(_STEPS) for one in drawn.step()]
        self.most = min(len(source) for source, _ in self._lists)
        self._at, self._random = 0, np.random.default_rng(most)

    def next(self, count: int) -> torch.Tensor:
        """int32 [2, count]: blocks of the store, slots, in the order of the list."""
        source, target = self._lists[self._at % len(self._lists)]
        self._at += 1
        kept = np.sort(self._random.permutation(len(source))[:count])
        return torch.from_numpy(np.stack([source[kept], target[kept]]))

    def copy(self, copy: Copy, us: float) -> tuple[Launch, Callable[[], None], int]:
        """A copy of about `us` alone, what gives it a new list, and its bytes."""
        ctas, in_flight, block = copy
        count = max(1, min(self.most, max(16, int(bytes_for(copy, us) / (block * KIB)) // 16 * 16)))
        ids = self.next(count).to(self.target.device)
        length = torch.full((1,), count, dtype=torch.int32, device=self.target.device)
        run = functools.partial(
            gather_blocks, self.source, self.target, ids[0], ids[1], length, ctas=ctas, in_flight_bytes=in_flight * KIB
        )

        def renew() -> None:
            ids.copy_(self.next(count))

        return run, renew, count * block * KIB
