"""Memory that reaches beyond 2**31 values without taking that much of a machine."""

from __future__ import annotations

import numpy as np
import torch

from tests.gpu_env import DEVICE

#: Values between the beginnings of two blocks: the third begins beyond what 32 bits can say.
APART = 2**30 + 64


def far_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """The same three blocks [3, 2, block, D], float16, APART values from each other, on the device.

    On a CPU the pages in between are never touched, so they take no memory; on a GPU they do (4.3 GB).
    """
    values = 2 * APART + blocks[0].numel()
    if DEVICE.type == "cuda":
        memory = torch.empty(values, dtype=torch.float16, device=DEVICE)
    else:
        memory = torch.from_numpy(np.empty(values, np.float16))
    far = memory.as_strided(blocks.shape, (APART, *blocks.stride()[1:]))
    far.copy_(blocks)
    return far
