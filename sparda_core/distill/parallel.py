"""Several processes that share a run: started by `torchrun` or `accelerate launch`, which set the same variables.

Rows of a step are dealt out, gradients are added up. What a step learns is the sum over the same rows whatever
the number of processes, so a run may even go on with another number; only rounding differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import attrs
import torch
from torch import distributed

from sparda_core.errors import ConfigError

#: How long processes wait for the first one, which reads text and measures recall alone. Sums over all of them wait as
#: long as torch has it, minutes: whoever is missing there is in trouble.
PATIENCE = timedelta(days=1)


@attrs.frozen
class World:
    """One process among all; `size` is 1 where there is no other.

    waiting  processes that wait for each other on the CPU: a GPU would time out, and be busy meanwhile. None: as sums
    """

    rank: int = 0
    size: int = 1
    waiting: Any = attrs.field(default=None, eq=False, repr=False)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum every tensor over all processes, in place and in one exchange; all of one dtype and device."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        distributed.all_reduce(flat)
        at = 0
        for tensor in tensors:
            tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            distributed.barrier(group=self.waiting)


def processes() -> int:
    """How many processes a launcher started, 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(device: str) -> str:
    """The device of this process: with "cuda" and several processes, the GPU of its number on this host."""
    if device == "cuda" and processes() > 1:
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return device


@contextmanager
def joined(device: str) -> Iterator[World]:
    """Meet the other processes of this run, and part from them at the end.

    device  "cpu" (gloo) or one of CUDA's (nccl)
    raises  ConfigError where they do not meet
    """
    size = processes()
    if size == 1:
        yield World()
        return
    try:
        _meet(device)
        waiting = distributed.new_group(backend="gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"WORLD_SIZE={size} processes did not meet ({error}); start them with torchrun") from error
    try:
        yield World(rank=distributed.get_rank(), size=size, waiting=waiting)
    finally:
        distributed.destroy_process_group()


def _meet(device: str) -> None:
    if torch.device(device).type != "cuda":
        distributed.init_process_group("gloo")
        return
    torch.cuda.set_device(device)
    # With its device named, NCCL connects now, and two processes on one GPU are refused here and not in mid-run.
    distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
