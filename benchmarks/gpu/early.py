"""Early starts of small kernels: the same step bit for bit? And how long is it, by how early they start?

python -m benchmarks.gpu.early [--json FILE] [--batch 4] [--layers 8] [--early 1 2]

Layers of the 8B shape over rows of 16K tokens of random keys; selectors choose for themselves. Without a GPU every
combination runs by Triton's interpreter on a tiny model, where nothing can start early, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.bench.gpu_clock import between  # isort: skip
from benchmarks.gpu.keep import keep
from sparda_core.bench.decode.cell import SPEC as MAIN_SPEC
from sparda_core.bench.decode.cell import main_shape
from sparda_core.bench.decode.fill import fill_random
from sparda_core.bench.decode.measure import fill_pinned
from sparda_core.kernels.early import AT_END, early_of
from sparda_core.models.model import Model
from sparda_core.models.synthetic import synthetic_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.pinning import pinned_empty
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.selectors.device.proxy import DeviceTokens
from sparda_core.shapes import BlockSpec, ModelShape

GPU = DEVICE.type == "cuda"
SPEC = MAIN_SPEC if GPU else BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=4)
CONTEXT, STEPS = (16384, 64) if GPU else (62, 2)
PAGE = 16
TINY = ModelShape(
    name="tiny", layers=2, hidden=32, ffn=48, q_heads=2, kv_heads=1, head_dim=32, vocab=97, context=256,
    tied_embeddings=True,
)  # fmt: skip
PAIRS = (
    ("forecast", "resident"), ("query", "resident"), ("forecast", "offload-prefetch"), ("forecast", "offload-sync"),
    ("query", "offload-sync"), ("infinigen", "offload-prefetch"), ("window", "resident"), ("random", "resident"),
)  # fmt: skip


def shape_of(layers: int) -> ModelShape:
    """The 8B shape, cut to some layers and to a small vocabulary."""
    return attrs.evolve(main_shape(), layers=layers, vocab=8192) if GPU else TINY


def host_memory(shape: ModelShape, batch: int) -> torch.Tensor | None:
    """Pinned memory of random values for every layer's blocks and a page more; None without a GPU."""
    if not GPU:
        return None
    blocks = SPEC.block_count(CONTEXT + 4 * STEPS) + 2 * PAGE
    memory = pinned_empty(shape.layers * batch * shape.kv_heads * blocks * 4 * SPEC.block * shape.head_dim)
    fill_pinned(memory, DEVICE, 0)
    return memory


def fill(session: GpuSession) -> None:
    """The same random values in all memory that a step may read."""
    fill_random(session, 0)
    for tier in session.machinery.tiers.layers:
        if not GPU and tier.host is not None:
            tier.host.array.normal_(generator=torch.Generator().manual_seed(1))
    scorer = getattr(session.machinery.half, "_scorer", None)
    if isinstance(scorer, DeviceTokens):
        # Keys of rows that nobody read.
        scorer._partial.normal_(generator=torch.Generator(DEVICE).manual_seed(2))  # noqa: SLF001


def run(
    model: Model, pair: tuple[str, str], batch: int, early: int, host: torch.Tensor | None, *, graph: bool
) -> tuple[list[Any], float | None]:
    """What each of some steps gave, and microseconds of a step; None without a GPU."""
    selector, runtime = pair
    with GpuSession(
        model, runtime=RUNTIMES.make(runtime), selector=SELECTORS.make(selector), spec=SPEC,
        options=GpuOptions.of(
            places=batch, tokens=CONTEXT + 4 * STEPS, page_blocks=PAGE, early=early, graph=graph, host_memory=host,
        ),
    ) as session:  # fmt: skip
        for _ in range(batch):
            session.claim(CONTEXT)
        fill(session)
        session.run(1, {row: 1 + row for row in session.rows})
        seen = []
        for _ in range(STEPS):
            session.run(1)
            seen.append((session.tokens(), session.last_logits().clone()))
        if not GPU or not graph:
            return seen, None
        return seen, statistics.median(between(lambda: session.run(1)) for _ in range(STEPS))


def same(one: list[Any], other: list[Any]) -> bool:
    """Tokens, and logits bit for bit."""
    pairs = zip(one, other, strict=True)
    return all(tokens == want and torch.equal(logits, plain) for (tokens, logits), (want, plain) in pairs)


def main() -> None:
    """Compare, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[4] if GPU else [1])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--early", type=int, nargs="*", default=[early_of(DEVICE, None)], help="compared with 0")
    args = parser.parse_args()
    model = synthetic_model(
        shape_of(args.layers), device=DEVICE, dtype=torch.bfloat16 if GPU else torch.float32, seed=0
    )
    rows: list[dict[str, Any]] = []
    wrong: list[tuple[object, ...]] = []
    host = host_memory(model.shape, max(args.batch))
    for batch in args.batch:
        for pair in PAIRS:
            plain, took = run(model, pair, batch, AT_END, host, graph=GPU)
            times = {AT_END: took}
            for early in set(args.early) - {AT_END}:
                ahead, times[early] = run(model, pair, batch, early, host, graph=True)
                if not same(ahead, plain):
                    wrong.append((batch, *pair, early))
            eager, _ = run(model, pair, batch, early_of(DEVICE, None), host, graph=False)
            if not same(eager, plain):
                wrong.append((batch, *pair, "eager"))
            rows.append({"batch": batch, "selector": pair[0], "runtime": pair[1], "step_us": times})
            told = ", ".join(f"early {early}: {us:.1f} us" for early, us in times.items() if us is not None)
            print(f"batch {batch:2} {' '.join(pair):30} {told}", flush=True)
    keep(args.json, "steps by how early small kernels start", rows, layers=args.layers)
    if wrong:
        raise SystemExit(f"not what steps without early starts give: {wrong}")


if __name__ == "__main__":
    main()
