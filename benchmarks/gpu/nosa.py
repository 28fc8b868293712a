"""What a token bias costs a decode step: its kernel, the two-stage choice, and attention with it and without.

python -m benchmarks.gpu.nosa [--json FILE]

Each kernel is first held to its reference in float64. Without a GPU the checks run by Triton's interpreter at a tiny
size, and nothing is timed. Times are of 32 launches in one graph, with tables of their own each: what a step does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch

from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import median_us
from tests.gpu_env import DEVICE  # decides for the process whether kernels are interpreted: before the kernels

from sparda_core.kernels.attend.bias import ListedBias  # isort: skip
from sparda_core.kernels.attend.gpu import AttendScratch, attend_scratch, attend_slots
from sparda_core.kernels.attend.reference import attend_blocks
from sparda_core.kernels.shortlist.gpu import shortlist_scores
from sparda_core.kernels.shortlist.reference import shortlist_scores as two_stages
from sparda_core.kernels.token_bias.gpu import keep_bias
from sparda_core.kernels.token_bias.reference import keep_bias as one_by_one
from sparda_core.layer_view import EntryView
from sparda_core.shapes import BlockSpec

GPU = DEVICE.type == "cuda"
SPEC = BlockSpec(sink=1, local=16, budget=96) if GPU else BlockSpec(block=16, window=8, stride=4, local=1, budget=6)
TOKENS, Q_HEADS, HEADS, WIDTH, KEEP = (131072, 32, 2, 128, 41) if GPU else (300, 4, 2, 32, 4)
DTYPE = torch.bfloat16 if GPU else torch.float32
LAYERS, BATCHES = 32, (1, 8, 16, 28)


@attrs.frozen(kw_only=True, eq=False)
class Load:
    """One layer of some rows at the end of their context; random values everywhere."""

    position: torch.Tensor
    value: torch.Tensor
    scale: torch.Tensor
    delta: torch.Tensor
    tokens: torch.Tensor
    means: torch.Tensor
    scores: torch.Tensor
    query: torch.Tensor
    slots: torch.Tensor
    logical: torch.Tensor
    physical: torch.Tensor
    counts: torch.Tensor
    out: torch.Tensor

    @classmethod
    def of(cls, batch: int, seed: int, *, tokens: int = TOKENS) -> Load:
        """Rows of `tokens` tokens; a lawful selection; every block of it in a slot."""
        draw = torch.Generator(DEVICE).manual_seed(seed)

        def real(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(size, generator=draw, device=DEVICE).to(dtype)

        pairs, blocks = batch * HEADS, SPEC.block_count(tokens)
        forced = torch.tensor(SPEC.forced_blocks(tokens - 1), device=DEVICE)
        order = torch.rand(batch, HEADS, blocks, generator=draw, device=DEVICE).index_fill_(2, forced, 2.0)
        chosen = order.topk(SPEC.budget).indices.sort(-1).values.int()
        return cls(
            position=torch.full((batch,), tokens - 1, dtype=torch.int32, device=DEVICE),
            value=real(batch, HEADS, WIDTH, dtype=DTYPE), scale=real(HEADS, dtype=DTYPE),
            delta=real(HEADS, HEADS * WIDTH, dtype=DTYPE) / WIDTH**0.5, tokens=real(batch, HEADS, tokens),
            means=real(batch, HEADS, SPEC.entry_count(tokens)), scores=real(batch, HEADS, blocks),
            query=real(batch, Q_HEADS, WIDTH, dtype=DTYPE), out=real(batch, Q_HEADS, WIDTH, dtype=DTYPE),
            slots=real(pairs * SPEC.budget, 2, SPEC.block, WIDTH, dtype=DTYPE), logical=chosen,
            physical=torch.arange(pairs * SPEC.budget, dtype=torch.int32, device=DEVICE).view(batch, HEADS, -1),
            counts=torch.full((batch, HEADS), SPEC.budget, dtype=torch.int32, device=DEVICE),
        )  # fmt: skip

    def keep(self) -> None:
        """Bias and mean of the newest token."""
        keep_bias(
            self.value, self.scale, self.delta, self.position, tokens=self.tokens, means=self.means, spec=SPEC
        )

    def shortlist(self) -> None:
        """The two-stage choice's scores, a layer early."""
        shortlist_scores(self.scores, self.means, self.position, SPEC, 1, keep=KEEP)

    def attend(self, scratch: AttendScratch, *, biased: bool) -> None:
        """Attention over the slots."""
        attend_slots(
            self.query, self.slots, self.physical, self.counts, self.position, SPEC, self.out, scratch,
            bias=self.tokens if biased else None, logical=self.logical if biased else None,
        )  # fmt: skip


def scratch_for(batch: int) -> AttendScratch:
    """Scratch of attention."""
    return attend_scratch(
        places=batch, q_heads=Q_HEADS, kv_heads=HEADS, head_dim=WIDTH, blocks=SPEC.budget, block=SPEC.block,
        dtype=DTYPE, device=DEVICE,
    )  # fmt: skip


def check(batch: int, tokens: int) -> None:
    """Each kernel beside its reference; raises AssertionError where they differ."""
    load = Load.of(batch, seed=batch, tokens=tokens)
    held, means = load.tokens.cpu(), load.means.cpu()
    at = load.position.cpu()
    one_by_one(load.value.cpu(), load.scale.cpu(), load.delta.cpu(), at, tokens=held, means=means, spec=SPEC)
    load.keep()
    torch.testing.assert_close(load.tokens.cpu(), held, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(load.means.cpu(), means, rtol=1e-4, atol=1e-4)
    known = torch.full((batch,), SPEC.entry_count(tokens - 1))
    view = EntryView(buffer=load.means.cpu()[..., None], rows=torch.arange(batch), counts=known)
    want = two_stages(load.scores.cpu()[:, :, None], view, at.long()[:, None], SPEC, keep=KEEP)[:, :, 0]
    load.shortlist()
    free = slice(SPEC.sink, SPEC.block_count(tokens) - 1 - SPEC.local)
    assert torch.equal(load.scores.cpu()[..., free], want[..., free]), "the two-stage choice is not the reference's"
    load.attend(scratch_for(batch), biased=True)
    bias = ListedBias(values=load.tokens.cpu(), rows=torch.arange(batch), blocks=load.logical.cpu()[:, :, None])
    seen = torch.full((batch, HEADS, 1, SPEC.budget), SPEC.block, dtype=torch.int32)
    seen[..., -1] = (tokens - 1) % SPEC.block + 1
    query = load.query.cpu().double()[:, :, None]
    exact = attend_blocks(query, load.slots.cpu().double(), load.physical.cpu().long()[:, :, None], seen, bias)[:, :, 0]
    error = float((load.out.cpu().double() - exact).norm() / exact.norm())
    assert error < (1e-2 if GPU else 1e-5), f"attention with a bias is {error:.1e} off"


def times(batch: int) -> Iterator[dict[str, Any]]:
    """Microseconds a layer."""
    loads, scratch = [Load.of(batch, seed) for seed in range(LAYERS)], scratch_for(batch)
    kinds: dict[str, list[Callable[[], None]]] = {
        "keep_bias": [load.keep for load in loads], "shortlist": [load.shortlist for load in loads],
        "attend": [partial(load.attend, scratch, biased=False) for load in loads],
        "attend with a bias": [partial(load.attend, scratch, biased=True) for load in loads],
    }  # fmt: skip
    for kernel, launches in kinds.items():
        yield {"kernel": kernel, "batch": batch, "us": round(median_us(launches), 2)}


def main() -> None:
    """Check, then time, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    for batch, tokens in ((2, 8192 if GPU else 300), (3, 8150 if GPU else 207)):
        check(batch, tokens)
    print("checked against the references: keep_bias, shortlist, attention with a bias")
    if not GPU:
        return
    rows = [row for batch in BATCHES for row in times(batch)]
    for row in rows:
        print(f"{row['kernel']:<20} b{row['batch']:<3} {row['us']:>8.2f} us a layer")
    keep(args.json, "what a token bias costs", rows, shape="nosa-8b", tokens=TOKENS)


if __name__ == "__main__":
    main()
