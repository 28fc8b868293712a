"""What every Triton kernel of ours shares. Importing this module loads torch and Triton.

With TRITON_INTERPRET=1 in the environment before Triton is first imported, the same kernels run on CPU
tensors, an instruction at a time: for tests. bfloat16 arithmetic is wrong there, so tests use the others.
"""

from __future__ import annotations

import os

import torch
import triton

from sparda_core.errors import ConfigError

#: Whether kernels are interpreted on the CPU instead of compiled for a GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def padded(size: int, least: int = 1) -> int:
    """The power of two that a tile of `size` values takes: Triton's tiles have no other widths."""
    return int(max(least, triton.next_power_of_2(size)))


def require_device(**tensors: torch.Tensor | None) -> torch.device:
    """The one device that all tensors lie on; raises ConfigError where they do not, or where kernels cannot run.

    None is skipped. Host memory that a kernel reads over the link is not named here.
    """
    where = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    devices = set(where.values())
    if len(devices) != 1:
        raise ConfigError(f"tensors lie on different devices: {', '.join(f'{n} on {d}' for n, d in where.items())}")
    device = devices.pop()
    if device.type != "cuda" and not INTERPRETED:
        raise ConfigError(
            f"{next(iter(where))} lies on {device}: Triton kernels need a CUDA device, "
            "or TRITON_INTERPRET=1 set before Python starts"
        )
    return device


def sm_count(device: torch.device) -> int:
    """Streaming multiprocessors of a device; 1 where kernels are interpreted."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def sm_shared_bytes(device: torch.device) -> int:
    """Shared memory of each of them, all of it; that of an H200 where kernels are interpreted, which know no bound."""
    if device.type != "cuda":
        return 228 * 2**10
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)
