"""What a selector's GPU half keeps is known before it is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.gpu_env import DEVICE  # isort: skip - before anything that imports Triton
from sparda_core.bench.decode.trace import BatchTrace
from sparda_core.bench.decode.traced import Traced
from sparda_core.selector import DeviceRoom, DeviceSizes, Selector
from sparda_core.selectors.query import Query
from sparda_core.selectors.replay import Replay
from tests.gpu.selectors.drive import DeviceDrive
from tests.selectors.cases import FORMS, make, record_query, spec_for
from tests.selectors.world import SHAPE, SPEC, World

PLACES, TOKENS = 3, 200
#: No GPU half, and one form twice.
UNPLANNED = (("oracle", "own"), ("replay", "own"))


def sizes_of(room: DeviceRoom) -> DeviceSizes:
    return DeviceSizes(
        shape=room.shape, spec=room.spec, places=room.places, tokens=room.tokens, value_bytes=room.dtype.itemsize,
        lead=room.lead,
    )  # fmt: skip


def made(name: str, label: str, folder: Path) -> tuple[Selector, int | None]:
    """One form of a selector; `replay` plays a few steps, whose recording takes no time."""
    if name != "replay":
        return make(name, label, folder)
    record_query(World.random(), texts=(0, 1), start=150, stop=153).save(folder / "few.npz")
    return Replay(path=folder / "few.npz"), 1


@pytest.mark.parametrize(("name", "label"), [form for form in FORMS if form not in UNPLANNED])
def test_a_plan_knows_what_a_gpu_half_will_keep(name: str, label: str, tmp_path: Path) -> None:
    selector, lead = made(name, label, tmp_path)
    world = World.random(spec=spec_for(name))
    drive = DeviceDrive(selector, world, places=PLACES, tokens=TOKENS, lead=lead)
    assert selector.device_bytes(sizes_of(drive.room)) == drive.half.used_bytes
    assert (drive.half.used_bytes > 0) == (name in ("query", "nosa", "infinigen", "replay"))


def test_a_trace_counts_beside_the_selector_that_it_replaces() -> None:
    streams = np.arange(SHAPE.layers * PLACES * SHAPE.kv_heads).reshape(SHAPE.layers, PLACES, SHAPE.kv_heads)
    nothing = np.full((5, streams.size, SPEC.budget), -1, np.int32)
    trace = BatchTrace(selections=nothing, before=nothing[0], stack=nothing[0, :, :0], streams=streams)
    traced = Traced(inner=Query(), trace=trace)
    room = DeviceRoom(
        shape=SHAPE, spec=SPEC, places=PLACES, tokens=TOKENS, device=DEVICE, dtype=torch.float32, lead=0,
        tick=torch.zeros(1, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip
    assert traced.device_bytes(sizes_of(room)) == traced.bind_device(room).used_bytes
