"""A pinned pool of blocks, slots to scatter them to, and lists that are never used twice."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.bench.gpu_clock import has_gpu
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.runs import CopyTuning
from sparda_core.runtimes.gpu.pinning import Progress, pinned_empty

BLOCK, D = 64, 128
KIB = 1024
#: Bytes of the smallest block that lists are made of.
UNIT = 4 * KIB


def device_of() -> torch.device:
    """Where kernels run: the GPU, or, by Triton's interpreter, the CPU."""
    return torch.device("cuda" if has_gpu() else "cpu")


def host_memory(nbytes: int, progress: Progress | None = None) -> torch.Tensor:
    """uint8 [nbytes], pinned where there is a GPU."""
    if not has_gpu():
        return torch.zeros(nbytes, dtype=torch.uint8)
    return pinned_empty(nbytes, method="cuda-host-alloc", progress=progress)


class Pool:
    """Host memory of `nbytes`, and as many bytes of slots on the device as `slot_bytes` says."""

    def __init__(self, nbytes: int, slot_bytes: int, progress: Progress | None = None) -> None:
        self.host, self.device = host_memory(nbytes, progress), device_of()
        self.slots = torch.empty(slot_bytes, dtype=torch.uint8, device=self.device)

    def cut(self, block_kib: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pool and slots as bfloat16 blocks [n, 2, tokens, D] of so many KiB."""
        shape = (-1, 2, block_kib * KIB // (4 * D), D)
        return self.host.view(torch.bfloat16).view(shape), self.slots.view(torch.bfloat16).view(shape)

    def lists(self, blocks: int, slots: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(source ids, slots, count) of a new random list."""
        source = torch.randint(0, blocks, (count,), device=self.device, dtype=torch.int32)
        target = torch.randperm(slots, device=self.device)[:count].int()
        return source, target, torch.full((1,), count, dtype=torch.int32, device=self.device)

    def copy(
        self, ctas: int, in_flight_kib: int, block_kib: int, nbytes: float, tuning: CopyTuning | None = None
    ) -> tuple[Callable[[], None], Callable[[], None], int]:
        """A copy of about so many bytes, what gives it a new list, and its bytes."""
        source, target = self.cut(block_kib)
        count = min(target.shape[0], max(16, int(nbytes / (block_kib * KIB)) // 16 * 16))
        source_ids, target_ids, length = self.lists(source.shape[0], target.shape[0], count)

        def run() -> None:
            gather_blocks(
                source, target, source_ids, target_ids, length, ctas=ctas, in_flight_bytes=in_flight_kib * KIB,
                tuning=tuning,
            )  # fmt: skip

        def renew() -> None:
            fresh = self.lists(source.shape[0], target.shape[0], count)
            for old, new in zip((source_ids, target_ids), fresh, strict=False):
                old.copy_(new)

        return run, renew, count * block_kib * KIB


def check(pool: Pool, block_kib: int = 32) -> None:
    """Raise AssertionError unless the listed blocks, and no others, arrive: what copies wrongly has no speed."""
    source, target = pool.cut(block_kib)
    source.view(torch.int32).flatten(1)[:, 0] = torch.arange(source.shape[0], dtype=torch.int32)
    count = min(target.shape[0] // 2, 200)
    for ctas, in_flight in ((2, 128), (1, 16)):
        target.zero_()
        source_ids, target_ids, length = pool.lists(source.shape[0], target.shape[0], count)
        gather_blocks(source, target, source_ids, target_ids, length, ctas=ctas, in_flight_bytes=in_flight * KIB)
        arrived = target.view(torch.int32).flatten(1)[:, 0]
        want = torch.zeros_like(arrived)
        want[target_ids.long()] = source_ids
        assert torch.equal(arrived, want), f"{ctas} x {in_flight} KiB moved other blocks than were listed"
