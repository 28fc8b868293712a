"""A copy in clusters moves what is listed and nothing else."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.cluster_copy import SIZES, cluster_gather
from sparda_core.errors import ConfigError
from tests import gpu_env


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("count", [0, 5, 17])
def test_listed_blocks_arrive_and_no_others(size: int, clusters: int, count: int) -> None:
    device = gpu_env.DEVICE
    source = torch.randn(40, 2, 8, 64, dtype=torch.float16)
    source = source.pin_memory() if device.type == "cuda" else source
    target = torch.full((24, 2, 8, 64), float("nan"), dtype=torch.float16, device=device)
    source_ids = torch.randint(0, 40, (17,)).int()
    slots = torch.randperm(24)[:17].int()
    length = torch.tensor([count], dtype=torch.int32, device=device)
    ids = source_ids.to(device), slots.to(device)
    cluster_gather(source, target, *ids, length, clusters=clusters, size=size, in_flight_bytes=4096)
    want = torch.full_like(target, float("nan"))
    want[slots[:count].long()] = source[source_ids[:count].long()].to(device)
    torch.testing.assert_close(target, want, rtol=0, atol=0, equal_nan=True)


def test_a_cluster_of_another_size_is_refused() -> None:
    none = torch.empty(0)
    with pytest.raises(ConfigError, match="size=3 must be one of 2, 4"):
        cluster_gather(none, none, none, none, none, clusters=1, size=3)
