"""Launches every Triton kernel of ours at small ragged shapes: what a sanitizer is shown.

python -m benchmarks.gpu.every_kernel        exit code 1, with their names, where a kernel was not launched

Without a GPU the same by Triton's interpreter, in float32.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from triton.runtime.interpreter import GridExecutor  # isort: skip
from triton.runtime.jit import JITFunction

import sparda_core
from sparda_core.bench.decode.trace import batch_trace
from sparda_core.bench.decode.traced import Traced
from sparda_core.device_view import Choice
from sparda_core.kernels.attend.gpu import attend_pages, attend_scratch
from sparda_core.kernels.attend.splitting import Tuning
from sparda_core.kernels.norm.gpu_heads import norm_heads
from sparda_core.kernels.tables import Paged
from sparda_core.models.tiny import tiny_model
from sparda_core.registry import RUNTIMES, SELECTORS
from sparda_core.runtimes.gpu.graphs import Eager
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.runtimes.gpu.session import GpuSession
from sparda_core.runtimes.snapshot import RowSnapshot
from sparda_core.selector import Selector
from sparda_core.shapes import BlockSpec, ModelShape
from sparda_core.simulator.locality_file import load_locality

GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if GPU else torch.float32
SPEC = BlockSpec(block=16, window=8, stride=4, sink=1, local=1, budget=5)
#: Three query heads a KV head, and a head dim that no tile has.
ODD = ModelShape(
    name="odd", layers=2, hidden=72, ffn=88, q_heads=6, kv_heads=2, head_dim=36, vocab=101, context=256,
    tied_embeddings=True,
)  # fmt: skip
#: A row that opens a block in the second step, one in its first block, one in the middle of nothing.
LENGTHS = (95, 7, 42) if GPU else (79, 7)
STEPS = 3 if GPU else 2
PREFETCH = "offload-prefetch"


@attrs.frozen(kw_only=True)
class Case:
    """A session whose steps launch some of the kernels."""

    selector: str
    runtime: str
    pool: Mapping[str, Any] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)
    chosen: Mapping[str, Any] = attrs.field(factory=dict)


CASES = (
    Case(selector="forecast", runtime=PREFETCH, pool={"policy": "lru", "slots": 7}),
    Case(selector="forecast", runtime=PREFETCH, options={"host_dtype": "fp8"}),
    Case(selector="forecast", runtime=PREFETCH, options={"copy_launch": "step"}),
    Case(selector="query", runtime="offload-sync"),
    Case(selector="infinigen", runtime=PREFETCH, pool={"policy": "score", "slots": 6}),
    Case(selector="window", runtime="offload-sync"),
    Case(selector="nosa", runtime="offload-sync", chosen={"select_blocks": 2}),
    Case(selector="dense", runtime="resident"),
    Case(selector="random", runtime="offload-sync", options={"temperature": 0.8, "top_p": 0.9}),
)


def launched() -> set[str]:
    """Names of kernels that will have been launched from now on; the set grows."""
    names: set[str] = set()
    for kind, method in ((JITFunction, "run"), (GridExecutor, "__call__")):
        setattr(kind, method, _noting(getattr(kind, method), names))
    return names


def _noting(whole: Any, names: set[str]) -> Any:
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.add(f"{self.fn.__module__}.{self.fn.__name__}")
        return whole(self, *args, **kwargs)

    return noted


def every_kernel() -> Iterator[str]:
    """Kernels by module; functions that kernels call have other names."""
    root = Path(sparda_core.__file__).parent
    for file in sorted((root / "kernels").glob("*/gpu*.py")):
        module = importlib.import_module(".".join(("sparda_core", *file.relative_to(root).with_suffix("").parts)))
        for name, found in vars(module).items():
            if name.endswith("kernel") and found.fn.__module__ == module.__name__:
                yield f"{module.__name__}.{name}"


def snapshot(tokens: int, seed: int, *, biased: bool = False) -> RowSnapshot:
    """A row of random keys, values, queries and biases: no prompt has to be read."""
    draw = np.random.default_rng(seed)

    def some(heads: int) -> Any:
        return draw.standard_normal((ODD.layers, heads, tokens, ODD.head_dim)).astype(np.float32)

    return RowSnapshot(
        tokens=tokens, keys=some(ODD.kv_heads), values=some(ODD.kv_heads), queries=some(ODD.q_heads),
        bias=some(ODD.kv_heads)[..., 0] if biased else None,
    )  # fmt: skip


def decode(
    selector: Selector, runtime: str, lengths: tuple[int, ...], spec: BlockSpec, pool: Mapping[str, Any], **options: Any
) -> None:  # fmt: skip
    """A few eager steps of rows that long; the last row sits one out."""
    biased = "token_bias" in selector.needs
    model = tiny_model(attrs.evolve(ODD, token_bias=biased), seed=3, dtype=DTYPE, device=DEVICE)
    with GpuSession(
        model, runtime=RUNTIMES.make(runtime, **pool), selector=selector, spec=spec,
        options=GpuOptions.of(places=len(lengths) + 1, tokens=128, page_blocks=2, graph=False, **options),
    ) as session:  # fmt: skip
        rows = [session.adopt(snapshot(length, seed, biased=biased)) for seed, length in enumerate(lengths)]
        session.run(1, dict.fromkeys(rows, 3))
        session.decode(dict.fromkeys(rows[:-1], 5) if len(rows) > 1 else {rows[0]: 5})
        session.run(STEPS)
        if options.get("copy_launch") == "step":
            # With one offloaded layer its list is whole before the copy begins: nobody waits, whatever runs when.
            machinery = session.machinery
            machinery._replays = Eager(machinery._captured_pieces)  # noqa: SLF001  no other way without a capture
            session.run(1)
        session.last_logits()


def trace() -> None:
    """A trace that decides after a selector's kernels ran."""
    locality = attrs.evolve(load_locality("hisparse"), churn=0.1)
    played = batch_trace(locality, shape=ODD, spec=SPEC, batch=1, context=111, steps=STEPS + 3)
    decode(Traced(inner=SELECTORS.make("forecast"), trace=played), PREFETCH, (111,), SPEC, {})


def many_pieces() -> None:
    """Attention in so many pieces that a second launch adds them up."""
    pages, heads = 24, 2
    q = torch.randn(2, 3 * heads, 36, device=DEVICE, dtype=DTYPE)
    array = torch.randn(heads * pages, 2, 16, 36, device=DEVICE, dtype=DTYPE)
    table = torch.arange(heads * pages, device=DEVICE, dtype=torch.int32).view(1, heads, pages).repeat(2, 1, 1)
    blocks = torch.arange(pages, device=DEVICE, dtype=torch.int32).repeat(2, heads, 1)
    scratch = attend_scratch(
        places=2, q_heads=3 * heads, kv_heads=heads, head_dim=36, blocks=pages, block=16, dtype=DTYPE, device=DEVICE,
        tuning=Tuning(splits=3, fused_up_to=1),
    )  # fmt: skip
    attend_pages(
        q, Paged(array=array, table=table, page_blocks=1),
        Choice(blocks=blocks, counts=torch.full((2, heads), pages, dtype=torch.int32, device=DEVICE)),
        torch.tensor([16 * pages - 5, -1], dtype=torch.int32, device=DEVICE), SPEC, torch.empty_like(q), scratch,
    )  # fmt: skip


def head_norms() -> None:
    """Queries and keys of a family that norms each head."""
    heads, kv = ODD.q_heads, ODD.kv_heads
    made = torch.randn(3, (heads + 2 * kv) * ODD.head_dim, device=DEVICE, dtype=DTYPE)
    norm_heads(made, torch.randn(heads + kv, ODD.head_dim, device=DEVICE, dtype=DTYPE), eps=1e-5)


def main() -> int:
    """Launch all; name what was left out."""
    names = launched()
    for case in CASES:
        spec = SPEC.with_budget(8) if case.selector == "dense" else SPEC
        decode(SELECTORS.make(case.selector, **case.chosen), case.runtime, LENGTHS, spec, case.pool, **case.options)
    trace()
    many_pieces()
    head_norms()
    known = set(every_kernel())
    missing = sorted(known - names)
    print(f"launched {len(names)} of {len(known)} kernels; not launched: {', '.join(missing) or 'none'}", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
