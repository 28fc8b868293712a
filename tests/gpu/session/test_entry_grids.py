"""A GPU session under other grids of entries than 32/16: prompts, steps, rings, crops and bytes, as on a CPU."""

from __future__ import annotations

import pytest

from sparda_core.shapes import BlockSpec
from tests.gpu.session.worlds import Pair, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"


@pytest.mark.parametrize(
    ("selector", "window", "stride"),
    [("forecast", 4, 4), ("forecast", 1, 1), ("forecast", 16, 4), ("query", 8, 8)],
)  # fmt: skip
def test_every_grid_answers_as_on_a_cpu(selector: str, window: int, stride: int) -> None:
    spec = BlockSpec(block=16, window=window, stride=stride, sink=1, local=1, budget=4)
    runtime = "offload-prefetch" if selector == "forecast" else "offload-sync"
    with Pair(selector, runtime, spec=spec, places=1, tokens=112) as pair:
        row = pair.add(prompt(63))
        pair.steps(40 if ON_GPU else 2)
        pair.crop(row, 50)
        pair.prefill(row, prompt(14, 3), chunk=5)
        pair.steps(1)
        entries = pair.gpu._machinery.tiers.entries.entries
        assert entries.shape[3] == spec.entry_count(112)
        assert pair.gpu._machinery.capacity.device_parts()["entries"] == pair.gpu._machinery.tiers.entries.used_bytes
