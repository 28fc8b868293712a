"""A GPU session: does it answer as a CPU session does, and how long is a step, eager and as one graph?

python -m benchmarks.gpu.session [--json FILE] [--tokens 8192] [--batch 1 16]

A prompt is read once and its row forked, so contexts are short: whole steps at 128K are `sparda bench decode`'s.
Without a GPU the check runs by Triton's interpreter on a tiny model, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.keep import keep
from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.models.synthetic import synthetic_model  # isort: skip
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from sparda_core.shapes import BlockSpec, ModelShape, named_shape

GPU = DEVICE.type == "cuda"
TINY = ModelShape(
    name="tiny", layers=3, hidden=64, ffn=96, q_heads=4, kv_heads=2, head_dim=32, vocab=97, context=512,
    tied_embeddings=True,
)  # fmt: skip
TINY_SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
SPEC = BlockSpec(sink=1, local=32, budget=96)
PAIRS = (
    ("forecast", "resident", {}),
    ("forecast", "offload-prefetch", {"policy": "lru", "slots": 192}),
    ("forecast", "offload-sync", {}),
    ("query", "offload-sync", {}),
)
STEPS = 32


def check(selector: str, runtime: str, options: dict[str, Any], steps: int) -> float:
    """Largest difference of logits between a CPU session and a GPU session over some steps; facts must be equal."""
    where = RUNTIMES.make(runtime, **({**options, "slots": 6} if "slots" in options else options))
    method = SELECTORS.make(selector)
    prompt = np.random.default_rng(0).integers(0, TINY.vocab, 62).tolist()
    worst = 0.0
    with (
        CpuSession(
            tiny_model(TINY), runtime=where, selector=method, spec=TINY_SPEC, options=SessionOptions()
        ) as cpu,
        GpuSession(
            tiny_model(TINY, device=DEVICE), runtime=where, selector=method, spec=TINY_SPEC,
            options=GpuOptions(places=1, tokens=256, page_blocks=4),
        ) as gpu,
    ):  # fmt: skip
        row = cpu.add()
        assert gpu.add() == row
        logits = cpu.prefill(row, prompt)
        worst = max(worst, float((gpu.prefill(row, prompt) - logits).abs().max()))
        for _ in range(steps):
            token = int(logits.argmax())
            want, got = cpu.decode({row: token}), gpu.decode({row: token})
            logits = want.logits[0]
            worst = max(worst, float((got.logits[0] - logits).abs().max()))
            for name in ("selected", "misses", "opened"):
                if not np.array_equal(getattr(got.facts, name), getattr(want.facts, name)):
                    raise SystemExit(f"{selector} x {runtime}: {name} differ from the CPU's")
    if worst > 1e-2:
        raise SystemExit(f"{selector} x {runtime}: logits differ by {worst}")
    return worst


def timed(work: Callable[[], object]) -> float:
    """Seconds of host time until the device has ended `work`."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def steps_ms(session: GpuSession, count: int) -> float:
    """Milliseconds of a step between two events around `count` of them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    session.run(count)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count


def measure(model: Any, pair: tuple[str, str, dict[str, Any]], batch: int, tokens: int) -> dict[str, Any]:
    """One combination at one batch: host seconds and step milliseconds."""
    selector, runtime, options = pair
    prompt = np.random.default_rng(1).integers(0, model.shape.vocab, tokens).tolist()
    row: dict[str, Any] = {"selector": selector, "runtime": runtime, **options, "batch": batch, "tokens": tokens}
    for graph in (False, True):
        room = {"places": batch, "tokens": tokens + 256, "page_blocks": 16, "graph": graph}
        made: list[GpuSession] = []
        row["open_s"] = timed(
            lambda room=room, made=made: made.append(
                GpuSession(
                    model, runtime=RUNTIMES.make(runtime, **options), selector=SELECTORS.make(selector), spec=SPEC,
                    options=GpuOptions.of(**room),
                )
            )
        )  # fmt: skip
        with made[0] as session:
            first = session.add()
            row["prefill_s"] = timed(lambda session=session, first=first: session.prefill(first, prompt))
            row["fork_s"] = timed(lambda session=session, first=first: [session.fork(first) for _ in range(batch - 1)])
            session.run(1)
            name = "graph" if graph else "eager"
            row[f"{name}_second_step_s"] = timed(lambda session=session: session.run(1))
            session.run(8)
            row[f"{name}_ms"] = statistics.median(steps_ms(session, STEPS) for _ in range(3 if graph else 1))
            host = []
            for _ in range(16):
                began = time.perf_counter()
                session.run(1)
                host.append(time.perf_counter() - began)
            row[f"{name}_host_ms"] = statistics.median(host) * 1e3
            row["misses"] = int(session.last_facts().misses.sum())
            row["finite"] = bool(session.last_logits().isfinite().all())
    return row


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    args = parser.parse_args()
    for selector, runtime, options in PAIRS:
        worst = check(selector, runtime, options, 64 if GPU else 1)
        print(f"{selector:10} {runtime:17} as on a CPU, logits within {worst:.1e}", flush=True)
    if not GPU:
        print("no CUDA device: nothing to time")
        return
    model = synthetic_model(named_shape("minicpm4.1-8b"), device=DEVICE, dtype=torch.bfloat16)
    rows = []
    for batch in args.batch:
        for pair in PAIRS:
            rows.append(measure(model, pair, batch, args.tokens))
            said = (f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items())
            print("  ".join(said), flush=True)
    keep(args.json, "steps of a session, captured and not", rows)


if __name__ == "__main__":
    main()
