"""Reading a prompt on a GPU: is it what a CPU session reads, and how long does it take, densely and by choice?

python -m benchmarks.gpu.prefill [--json FILE] [--tokens 8192 32768] [--chunk 2048] [--selectors query infinigen]

Without a GPU the check runs by Triton's interpreter on a tiny model, and nothing is timed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.keep import keep
from benchmarks.gpu.session import GPU, SPEC, TINY, TINY_SPEC, timed
from tests.gpu_env import DEVICE

from sparda_core.models.synthetic import synthetic_model  # isort: skip
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.session import CpuSession
from sparda_core.runtimes.session_options import SessionOptions
from sparda_core.shapes import named_shape

PAIRS = (
    ("forecast", "offload-prefetch"), ("query", "offload-sync"), ("forecast", "resident"),
    ("infinigen", "offload-prefetch"),
)  # fmt: skip
#: For the check: dimensions fewer than a head has, chosen by more than what the rotation is made from.
TINY_OPTIONS = {"infinigen": {"channels": 8, "calibration_tokens": 32}}
MODES = ("dense", "selector")
#: Tokens of the check: the first ones densely, the others as asked, so that they choose among more than the budget.
BEFORE, READ = (100, 200) if GPU else (96, 5)


def ids(count: int, vocab: int) -> list[int]:
    """A prompt of random tokens."""
    drawn: list[int] = np.random.default_rng(0).integers(0, vocab, count).tolist()
    return drawn


def check(selector: str, runtime: str, mode: str) -> float:
    """Largest difference of logits between a CPU session and a GPU session, of the prompt's last token and of a step
    after it; leaves where it is large.
    """
    method, where = SELECTORS.make(selector, **TINY_OPTIONS.get(selector, {})), RUNTIMES.make(runtime)
    tokens = ids(BEFORE + READ, TINY.vocab)
    logits = []
    with (
        CpuSession(
            tiny_model(TINY), runtime=where, selector=method, spec=TINY_SPEC, options=SessionOptions()
        ) as cpu,
        GpuSession(
            tiny_model(TINY, device=DEVICE), runtime=where, selector=method, spec=TINY_SPEC,
            options=GpuOptions(places=1, tokens=len(tokens) + 1, page_blocks=4),
        ) as gpu,
    ):  # fmt: skip
        for session in (cpu, gpu):
            row = session.add()
            session.prefill(row, tokens[:BEFORE])
            read = session.prefill(row, tokens[BEFORE:], mode=mode, chunk=64 if GPU else 3)
            logits.append(torch.stack((read, session.decode({row: 1}).logits[0])))
    worst = float((logits[0] - logits[1]).abs().max())
    if not worst <= 1e-2:
        raise SystemExit(f"{selector} x {runtime}, {mode}: logits differ by {worst}")
    return worst


def measure(model: Any, pair: tuple[str, str], mode: str, tokens: int, chunk: int) -> dict[str, Any]:
    """Seconds of one prompt, the second of two: the first compiles kernels."""
    prompt = ids(tokens, model.shape.vocab)
    torch.cuda.reset_peak_memory_stats()
    with GpuSession(
        model, runtime=RUNTIMES.make(pair[1]), selector=SELECTORS.make(pair[0]), spec=SPEC,
        options=GpuOptions(tokens=tokens),
    ) as session:  # fmt: skip
        row = session.add()
        session.prefill(row, prompt[: 2 * chunk], mode=mode, chunk=chunk)
        session.crop(row, 0)
        took = timed(lambda: session.prefill(row, prompt, mode=mode, chunk=chunk))
        planned = session.capacity.device_bytes
    return {
        "selector": pair[0], "runtime": pair[1], "mode": mode, "tokens": tokens, "chunk": chunk, "seconds": took,
        "tokens_per_s": tokens / took, "peak_bytes": torch.cuda.max_memory_allocated(), "planned_bytes": planned,
    }  # fmt: skip


def main() -> None:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--chunk", type=int, default=2048)
    known = sorted({selector for selector, _ in PAIRS})
    parser.add_argument("--selectors", nargs="+", choices=known, default=known, help="which to read for (default: all)")
    args = parser.parse_args()
    pairs = [pair for pair in PAIRS if pair[0] in args.selectors]
    for selector, runtime in pairs:
        for mode in MODES:
            worst = check(selector, runtime, mode)
            print(f"{selector:10} {runtime:17} {mode:9} as on a CPU, logits within {worst:.1e}", flush=True)
    if not GPU:
        print("no CUDA device: nothing to time")
        return
    model = synthetic_model(named_shape("minicpm4.1-8b"), device=DEVICE, dtype=torch.bfloat16)
    rows = []
    for tokens in args.tokens:
        for pair in pairs:
            for mode in MODES:
                rows.append(measure(model, pair, mode, tokens, args.chunk))
                said = (f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items())
                print("  ".join(said), flush=True)
    keep(args.json, "a prompt on a GPU, densely and by choice", rows)


if __name__ == "__main__":
    main()
