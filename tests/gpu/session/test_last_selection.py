"""A GPU session tells what its last step selected: what a CPU session selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparda_core.cli.record import record
from sparda_core.compose import compose
from sparda_core.errors import ConfigError
from tests.gpu.session.worlds import SHAPE, SPEC, Pair, models, prompt
from tests.gpu_env import DEVICE

ON_GPU = DEVICE.type == "cuda"
CASES = [
    ("forecast", "offload-prefetch"), ("dense", "offload-sync"), ("dense", "resident"), ("query", "offload-sync"),
    ("window", "resident"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "runtime"), CASES if ON_GPU else CASES[:3])
def test_the_last_selection_is_that_of_a_cpu(selector: str, runtime: str) -> None:
    spec = SPEC.with_budget(6) if selector == "dense" else SPEC
    seen: dict[int, Any] = {}

    def keep(view: Any) -> None:
        seen[view.layer] = view.selection[:, :, 0].numpy().copy()

    with Pair(selector, runtime, spec=spec, places=3, tokens=96) as pair:
        pair.cpu.on_selection = keep
        first, second = pair.add(prompt(70)), pair.add(prompt(9, 1))
        pair.step({first: 1, second: 2})
        want = np.full((SHAPE.layers, 2, SHAPE.kv_heads, spec.budget), -1, np.int32)
        for layer, blocks in seen.items():
            want[layer, :, :, : blocks.shape[-1]] = blocks
        np.testing.assert_array_equal(pair.gpu.last_selection(), want)
        pair.step({first: 3})
        assert (pair.gpu.last_selection()[:, 1] == -1).all()
        assert (pair.gpu.last_selection()[:, 0] >= 0).any(-1).all()


def test_a_selection_wider_than_the_budget_is_refused() -> None:
    with Pair("dense", "resident", spec=SPEC, places=1, tokens=96) as pair:
        row = pair.add(prompt(70))
        pair.gpu.run(1, {row: 1})
        with pytest.raises(ConfigError, match="budget=4 must be >= 5"):
            pair.gpu.last_selection()


@pytest.mark.gpu
def test_a_recording_made_on_a_gpu_is_that_of_a_cpu(tmp_path: Path) -> None:
    made = []
    for model in models():
        pair = compose(model, "forecast", "offload-prefetch", spec=SPEC)
        made.append(record(pair, [prompt(90)], steps=24, report=lambda what, done, total: None))
    here, there = made
    np.testing.assert_array_equal(there.selections, here.selections)
    np.testing.assert_array_equal(there.positions, here.positions)
    assert [facts.misses.tolist() for facts in there.facts] == [facts.misses.tolist() for facts in here.facts]
