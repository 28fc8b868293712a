"""Attention compiled without a GPU: what its thread blocks ask of a multiprocessor.

python tests/gpu/attend/compiled.py ARCH, in a process of its own: nothing is interpreted in it. Prints, as JSON, a list
of {"shape", "shared", "registers", "warps"}, in the order of SHAPES.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import sparda_core.kernels.device as device_module
from sparda_core.kernels.attend import gpu
from sparda_core.kernels.attend.occupancy import H200
from sparda_core.shapes import BlockSpec
from tests.gpu.attend.shapes import SHAPES, Shape
from tests.gpu.early.compiled import NoDriver

PTXAS = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "ptxas"


def launch(shape: Shape) -> None:
    """Attention over slots, 96 blocks of 64 tokens."""
    dtype, spec = getattr(torch, shape.dtype), BlockSpec(sink=1, local=32, budget=96)
    q_heads = shape.kv_heads * shape.group
    scratch = gpu.attend_scratch(
        places=shape.rows, q_heads=q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, blocks=96, block=64,
        dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip
    q = torch.zeros(shape.rows, q_heads, shape.head_dim, dtype=dtype)
    array = torch.zeros(4, 2, 64, shape.head_dim, dtype=dtype)
    physical, counts, position = (
        torch.zeros(size, dtype=torch.int32)
        for size in ((shape.rows, shape.kv_heads, 96), (shape.rows, shape.kv_heads), (shape.rows,))
    )
    gpu.attend_slots(q, array, physical, counts, position, spec, q, scratch)


def registers(ptx: str) -> int:
    """Of a thread, as the assembler says."""
    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(PTXAS), "-v", f"--gpu-name={target[1]}", file.name, "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    used = re.search(r"Used (\d+) registers", done.stderr)
    assert used is not None, done.stderr
    return int(used[1])


def compiled(arch: int) -> list[dict[str, Any]]:
    """What each of SHAPES compiles to, cut for an H200."""
    found: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if self.__name__ == "attend_kernel":
            asked = {"shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps}
            found.append({**asked, "registers": registers(kernel.asm["ptx"])})
        return kernel

    driver.set_active(NoDriver(arch))
    JITFunction.run = compile_only
    device_module.INTERPRETED = True  # tensors may lie on the CPU: nobody reads them
    vars(gpu)["sm_count"] = lambda device: H200.count
    for shape in SHAPES:
        launch(shape)
    return found


if __name__ == "__main__":
    json.dump(compiled(int(sys.argv[1])), sys.stdout)
