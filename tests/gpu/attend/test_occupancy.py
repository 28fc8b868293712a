"""What is said of a thread block of attention's shared memory and registers is what the compiler gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparda_core.kernels.attend.occupancy import H200, KIB, Sms, ctas_per_sm, shared_bytes
from sparda_core.kernels.attend.splitting import cut_lists
from tests.gpu.attend.shapes import SHAPES

SCRIPT = Path(__file__).with_name("compiled.py")
#: By compute capability: shared memory of a multiprocessor, in KiB.
SHARED_KIB = {80: 164, 90: 228}


@pytest.mark.parametrize("arch", [80, 90])
def test_thread_blocks_ask_for_what_is_said_and_as_many_find_room(arch: int) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(arch)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(SHAPES)
    for shape, asked in zip(SHAPES, found, strict=True):
        value_bytes = 4 if shape.dtype == "float32" else 2
        cut = cut_lists(
            shape.rows * shape.kv_heads, 96, block=64, group=shape.group, head_dim=shape.head_dim,
            value_bytes=value_bytes, sms=H200,
        )  # fmt: skip
        said = shared_bytes(
            tokens=cut.tokens, depth=cut.depth, group=shape.group, head_dim=shape.head_dim, value_bytes=value_bytes
        )
        assert asked["warps"] == cut.warps, shape
        assert asked["shared"] <= said <= asked["shared"] + KIB, shape
        room = SHARED_KIB[arch] * KIB // (asked["shared"] + KIB)
        # A warp gets its registers in lots of 256.
        lot = -(-32 * asked["registers"] // 256) * 256
        held = min(room, 64 * KIB // (cut.warps * lot))
        assert ctas_per_sm(said, cut.warps, Sms(count=1, shared_bytes=SHARED_KIB[arch] * KIB)) == held, shape


@pytest.mark.parametrize(("shared_kib", "held"), [(228, 3), (164, 2), (100, 1), (64, 1)])
def test_less_shared_memory_holds_fewer(shared_kib: int, held: int) -> None:
    sms = Sms(count=108, shared_bytes=shared_kib * KIB)
    cut = cut_lists(192, 96, block=64, group=16, head_dim=128, value_bytes=2, sms=sms)
    assert cut.ctas_per_sm == held


def test_registers_bound_what_little_shared_memory_would_allow() -> None:
    sms = Sms(count=108, shared_bytes=228 * KIB)
    assert ctas_per_sm(KIB, 8, sms) < ctas_per_sm(KIB, 4, sms) < ctas_per_sm(KIB, 2, sms) < 228
