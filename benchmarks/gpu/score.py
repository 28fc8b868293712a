"""Scoring kernels: checked against float64 references, then timed at the shape of MiniCPM4.1-8B.

python -m benchmarks.gpu.score [--sweep] [--json FILE]      without a GPU: the check alone, tiny, interpreted

Floor = what must be read and written over 4.2 TB/s: entries (forecast), entries and logits out and in (query), 32
channels of every token (proxy). "with top-k" adds the launch that chooses.

Predicted before measuring, microseconds a layer at 128K: forecast 3.5 at batch 1, 6 at 4, 19 at 16, 72 at 64; query 7,
12, 31, 115; proxy 7, 20, 74. Measured (H200, torch 2.11, triton 3.6, driver 580, 2026-11-30): forecast 3.3, 7.6, 19.7,
66.3; query 7.7, 12.2, 31.8, 112.5; proxy 8.6, 21.2, 74.9.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import median_us
from sparda_core.device_view import Choice
from sparda_core.kernels.pool import tiles
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_forecast.reference import forecast_block_scores as forecast_reference
from sparda_core.kernels.score_proxy.gpu import proxy_block_scores
from sparda_core.kernels.score_proxy.reference import proxy_block_scores as proxy_reference
from sparda_core.kernels.score_query import splits
from sparda_core.kernels.score_query.gpu import query_block_scores, query_scratch
from sparda_core.kernels.score_query.reference import query_block_scores as query_reference
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

DEVICE = tests.gpu_env.DEVICE
MAIN = BlockSpec(block=64, window=32, stride=16, sink=1, local=32, budget=96)
HQ, HK, D, CHANNELS = 32, 2, 128, 32
BYTES_PER_US = 4.2e6
#: Keys that layers hold together, so that none of them is still in the second-level cache at its next turn.
ROTATED_BYTES = 400 << 20
#: Largest relative error by norm, bf16 and fp16 inputs widened to float64.
TOLERANCE = 1e-4
#: What a sweep tries beside the shipped setting.
OPTIONS: dict[str, tuple[Any, tuple[dict[str, int], ...]]] = {
    "forecast": (tiles, (
        {"TILE_BYTES": 16 << 10}, {"TILE_BYTES": 16 << 10, "WARPS": 2}, {"WARPS": 8},
        {"TILE_BYTES": 64 << 10, "WARPS": 8},
    )),
    "query": (splits, (
        {"TILE": 128, "STAGES": 3}, {"STAGES": 3}, {"MOST_SPLITS": 32}, {"PROGRAMS_PER_SM": 12}, {"PROGRAMS_PER_SM": 3},
    )),
}  # fmt: skip


class Layers:
    """Layers of one batch at a context, with positions just below it; one of them may be scored in each way."""

    def __init__(self, batch: int, context: int, dtype: torch.dtype, *, tokens: bool) -> None:
        self.spec, self.batch, self.tokens = MAIN, batch, tokens
        keys, width = (context, CHANNELS) if tokens else (MAIN.entry_count(context), D)
        size = batch * HK * keys * width * dtype.itemsize
        self.layers = 1 if DEVICE.type == "cpu" else max(2, min(64, -(-ROTATED_BYTES // size)))
        self.query = torch.randn(batch, HQ, width, device=DEVICE).to(dtype)
        self.keys = [torch.randn(batch, HK, keys, width, device=DEVICE, dtype=dtype) for _ in range(self.layers)]
        self.position = torch.full((batch,), context - 2, device=DEVICE, dtype=torch.int32)
        self.position -= torch.arange(batch, device=DEVICE, dtype=torch.int32) % 50
        self.out = torch.full((batch, HK, MAIN.block_count(context) + 1), float("nan"), device=DEVICE)
        self.choice = Choice(
            blocks=torch.empty(batch, HK, MAIN.budget, dtype=torch.int32, device=DEVICE),
            counts=torch.empty(batch, HK, dtype=torch.int32, device=DEVICE),
        )
        self.scratch = query_scratch(
            places=1 if tokens else batch, q_heads=HQ, kv_heads=HK, entries=1 if tokens else keys,
            device=DEVICE,
        )  # fmt: skip

    def forecast(self, layer: int) -> None:
        """One launch."""
        forecast_block_scores(self.query[:, :HK], self.keys[layer], self.position, self.spec, 1, self.out)

    def query_scores(self, layer: int) -> None:
        """Two launches."""
        query_block_scores(self.query, self.keys[layer], self.position, self.spec, 0, self.out, self.scratch)

    def proxy(self, layer: int) -> None:
        """One launch, of a query that is projected already."""
        query, scale = self.query[:, :HK], CHANNELS**-0.5
        proxy_block_scores(query, self.keys[layer], self.position, self.spec, 1, scale, self.out)

    def choose(self, layer: int) -> None:
        """Top-k of the scores last made."""
        choose_blocks(self.out, self.position, self.spec, self.choice)

    def floor_us(self, name: str) -> float:
        """Bytes that cannot be avoided, over 4.2 TB/s."""
        entries = self.keys[0].nbytes
        logits = 2 * 4 * self.batch * HQ * self.keys[0].shape[2] if name == "query" else 0
        return (entries + logits) / BYTES_PER_US


def check(batch: int, context: int, dtype: torch.dtype) -> dict[str, float]:
    """Relative errors of the three scorings against their float64 references; raises where one is too large."""
    entries, tokens = Layers(batch, context, dtype, tokens=False), Layers(batch, context, dtype, tokens=True)
    at = entries.position.long()[:, None]
    errors = {}
    for name, world, unseen in (("forecast", entries, 1), ("query", entries, 0), ("proxy", tokens, 1)):
        world.out.fill_(float("nan"))
        getattr(world, "query_scores" if name == "query" else name)(0)
        keys, query = world.keys[0].double(), world.query.double()[:, :, None]
        seen = at[:, 0] + 1 - unseen
        if name == "proxy":
            want = proxy_reference(query[:, :HK], keys, seen, at, MAIN, CHANNELS**-0.5)
        else:
            counts = ((seen - MAIN.window) // MAIN.stride + 1).clamp_min(0)
            view = EntryView(buffer=keys, rows=torch.arange(batch, device=DEVICE), counts=counts)
            reference, heads = (query_reference, HQ) if name == "query" else (forecast_reference, HK)
            want = reference(query[:, :heads], view, at, MAIN)
        errors[name] = _error(world.out, want[:, :, 0], at)
        if not errors[name] <= TOLERANCE:
            raise SystemExit(f"{name} scores are wrong: relative error {errors[name]:.1e} > {TOLERANCE:.0e}")
    return errors


def _error(got: torch.Tensor, want: torch.Tensor, at: torch.Tensor) -> float:
    """By norm, over blocks up to each row's current one; infinite where infinities differ."""
    mine, theirs = [], []
    for row, position in enumerate(at[:, 0].tolist()):
        current = position // MAIN.block + 1
        one, other = got[row, :, :current].double(), want[row, :, :current]
        if not torch.equal(one.isinf(), other.isinf()):
            return float("inf")
        mine.append(one[other.isfinite()])
        theirs.append(other[other.isfinite()])
    return float((torch.cat(mine) - torch.cat(theirs)).norm() / torch.cat(theirs).norm())


def time_cell(name: str, batch: int, context: int) -> dict[str, Any]:
    """One line of the table."""
    world = Layers(batch, context, torch.bfloat16, tokens=name == "proxy")
    score = getattr(world, "query_scores" if name == "query" else name)
    order = list(range(world.layers)) * max(1, 16 // world.layers)

    def both(layer: int) -> None:
        score(layer)
        world.choose(layer)

    alone = median_us([lambda layer=layer: score(layer) for layer in order])  # type: ignore[misc]
    chosen = median_us([lambda layer=layer: both(layer) for layer in order])  # type: ignore[misc]
    floor = world.floor_us(name)
    return {
        "scoring": name, "batch": batch, "context": context, "us": alone, "floor_us": floor, "ratio": alone / floor,
        "with_top_k_us": chosen, "with_top_k_ratio": chosen / floor,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> None:
    """A line a cell."""
    print("scoring    batch  context    us  floor  ratio   with top-k  ratio")
    for row in rows:
        print(
            f"{row['scoring']:9s} {row['batch']:6d} {row['context'] // 1024:7d}K {row['us']:6.1f} "
            f"{row['floor_us']:6.1f} {row['ratio']:6.2f} {row['with_top_k_us']:11.1f} {row['with_top_k_ratio']:7.2f}"
        )


def sweep() -> list[dict[str, Any]]:
    """Batch 1, 16 and 64 at 128K under other tiles; the shipped setting first."""
    found: list[dict[str, Any]] = []
    for name, (module, options) in OPTIONS.items():
        for option in ({}, *options):
            kept = {key: getattr(module, key) for key in option}
            for key, value in option.items():
                setattr(module, key, value)
            found += [{**time_cell(name, batch, 2**17), "option": str(option)} for batch in (1, 16, 64)]
            for key, value in kept.items():
                setattr(module, key, value)
            print(option, [f"{row['us']:.1f}" for row in found[-3:]], name)
    return found


def main() -> None:
    """Check, then time where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="also try other tiles")
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    if DEVICE.type == "cpu":
        print("interpreted:", {name: f"{error:.1e}" for name, error in check(2, 300, torch.float16).items()})
        return
    print("128K, batch 2:", {name: f"{error:.1e}" for name, error in check(2, 2**17, torch.bfloat16).items()})
    cells = [(name, batch, 2**17) for name in ("forecast", "query") for batch in (1, 4, 8, 16, 28, 64)]
    shorter = [(batch, context) for context in (2**15, 2**16) for batch in (1, 16, 64)]
    cells += [(name, *cell) for name in ("forecast", "query") for cell in shorter]
    cells += [("proxy", batch, 2**17) for batch in (1, 4, 16)]
    rows = [time_cell(*cell) for cell in cells]
    table(rows)
    if args.sweep:
        rows += sweep()
    keep(args.json, "scoring kernels", rows)


if __name__ == "__main__":
    main()
