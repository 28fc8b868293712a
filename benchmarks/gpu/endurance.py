"""Is memory flat over 10,000 decode steps in which rows grow to capacity, fork, are cropped, retired and added?

python -m benchmarks.gpu.endurance [--steps 10000] [--json FILE]

After every 1,000 steps: bytes that torch has allocated and reserved, bytes of the device that are not free (graphs and
modules included), and the resident memory of the process. Exit code 1 where any of them, after the first 1,000 steps,
grows by more than TOLERANCE. Without a GPU one short cycle runs by Triton's interpreter.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.models.tiny import tiny_model  # isort: skip
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.shapes import BlockSpec, ModelShape

GPU = DEVICE.type == "cuda"
SHAPE = ModelShape(
    name="tiny", layers=3 if GPU else 2, hidden=64, ffn=96, q_heads=4, kv_heads=2, head_dim=32, vocab=97, context=512,
    tied_embeddings=True,
)  # fmt: skip
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=6)
#: Steps of a part of a cycle, tokens of a prompt. The first row of a cycle ends as long as a row may become.
PART, PROMPT = (80, 60) if GPU else (1, 20)
CAPACITY = PROMPT + 3 * PART + PART // 4
EVERY = 1000
#: Growth allowed, bytes: what tensors take must not move; torch may reserve a segment more, driver and Python some.
TOLERANCE = {"allocated": 0, "reserved": 2 << 20, "device": 4 << 20, "process": 8 << 20}


def cycle(session: GpuSession, seed: int) -> int:
    """Three rows come and go, with 1, 2 and 3 of them in a step; returns the steps."""
    draw = np.random.default_rng(seed)

    def prompt() -> list[int]:
        tokens: list[int] = draw.integers(0, SHAPE.vocab, PROMPT).tolist()
        return tokens

    steps = 0

    def run(count: int, tokens: dict[int, int] | None = None) -> None:
        nonlocal steps
        if count:
            session.run(count, tokens)
            steps += count

    first = session.add()
    session.prefill(first, prompt())
    run(PART)
    second = session.fork(first)
    run(PART)
    third = session.add()
    session.prefill(third, prompt())
    run(PART)
    run(PART // 4)
    session.retire(first)
    session.crop(second, PROMPT // 2)
    run(1, {second: 5})
    run(PART - 1)
    session.retire(second)
    session.crop(third, PROMPT)
    run(1, {third: 7})
    run(PART - 1)
    run(PART)
    session.retire(third)
    return steps


def taken() -> dict[str, int]:
    """Bytes now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if not GPU:
        return {"allocated": 0, "reserved": 0, "device": 0, "process": resident}
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(), "device": total - free,
        "process": resident,
    }  # fmt: skip


def endure(steps: int) -> list[dict[str, int]]:
    """What was taken after every EVERY steps."""
    marks: list[dict[str, int]] = []
    with GpuSession(
        tiny_model(SHAPE, seed=3, device=DEVICE), runtime=RUNTIMES.make("offload-prefetch", policy="lru", slots=8),
        selector=SELECTORS.make("forecast"), spec=SPEC,
        options=GpuOptions(places=3, tokens=CAPACITY, page_blocks=2),
    ) as session:  # fmt: skip
        done = 0
        while done < steps:
            done += cycle(session, seed=done)
            if done // EVERY >= len(marks) + 1 or done >= steps:
                marks.append({"steps": done, **taken()})
                print("  ".join(f"{name} {value:,}" for name, value in marks[-1].items()), flush=True)
    return marks


def growth(marks: list[dict[str, int]]) -> dict[str, int]:
    """Most that each count grew after the first mark."""
    return {name: max(mark[name] for mark in marks) - marks[0][name] for name in TOLERANCE}


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000 if GPU else 1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    marks = endure(args.steps)
    grown = growth(marks)
    flat = all(grown[name] <= most for name, most in TOLERANCE.items())
    print(f"{'flat' if flat else 'NOT FLAT'} in {time.perf_counter() - began:.1f} s; grew by {grown}")
    if args.json is not None:
        args.json.write_text(json.dumps({"flat": flat, "grown": grown, "marks": marks}, indent=1) + "\n")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
