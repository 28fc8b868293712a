"""A layer's list of misses written into the host's memory by the device: one launch, no copy that the host issues.

The host may read the list once a mark behind the launch has been reached: a kernel that has ended has written
everything, over the link as well.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.tables import DeviceDiff

#: Misses that are moved at a time; most lists are shorter.
TILE = 1024


@triton.jit(do_not_specialize=["most"])
def _tell_kernel(
    count, source, target, told_count, told_source, told_target, most, TILE: tl.constexpr, EARLY: tl.constexpr
):
    wait_for_kernel_ahead(EARLY)
    blocks = tl.load(count)
    tl.store(told_count, blocks)
    for start in range(0, tl.minimum(blocks, most), TILE):
        at = start + tl.arange(0, TILE)
        listed = at < tl.minimum(blocks, most)
        tl.store(told_source + at, tl.load(source + at, mask=listed), mask=listed)
        tl.store(told_target + at, tl.load(target + at, mask=listed), mask=listed)


def tell_list(diff: DeviceDiff, told_count: torch.Tensor, told: torch.Tensor, *, early: int = AT_END) -> None:
    """See `tell.reference.tell_list`; one launch of one thread block.

    told_count, told  int32 [1] and [2, m], pinned host memory that the kernel writes over the link; no longer list
                      than `diff` has room for is written, whatever its count says
    early             see `kernels.early`
    Raises ConfigError where something does not fit.
    """
    room = diff.source.numel()
    require_device(count=diff.count, source=diff.source, target=diff.target)
    require_shape(diff.count, "count", one=1)
    require_shape(diff.target, "target", room=room)
    require_shape(told_count, "told_count", one=1)
    require_shape(told, "told", two=2, room=None)
    if told.shape[1] < room or told.dtype != torch.int32 or told_count.dtype != torch.int32 or told.stride(1) != 1:
        raise ConfigError(
            f"told is {told.dtype} of room for {told.shape[1]} misses, told_count {told_count.dtype}; want int32, and "
            f"room for all {room} that the list may hold"
        )
    _tell_kernel[(1,)](
        diff.count, diff.source, diff.target, told_count, told[0], told[1], room, TILE=TILE, num_warps=8,
        **launch_early(early),
    )  # fmt: skip
