"""Next tokens from logits on a GPU: greedy, or nucleus sampling, without the host knowing any of it.

Every row's random number comes from its seed and its position alone (Philox), and a row is summed by one program
in one order. So a row samples the same token captured or eager, in any batch and any place of it.
"""

from __future__ import annotations

import attrs
import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.sample.work import SPLIT
from sparda_core.kernels.strides import require_contiguous_rows

#: Most logits that a nucleus program holds at once.
TILE = 4096
_NEVER = tl.constexpr(2**31 - 1)


@attrs.frozen(kw_only=True, eq=False)
class SampleScratch:
    """Room that sampling needs, for up to B places; made once by `sample_scratch`.

    best, where    float32, int32 [B, splits]
    ranked, ids    float32, int64 [B, vocab]: logits in falling order, and whose they are; None for greedy alone
    """

    best: torch.Tensor
    where: torch.Tensor
    ranked: torch.Tensor | None
    ids: torch.Tensor | None


def sample_scratch(places: int, vocab: int, device: torch.device, *, nucleus: bool) -> SampleScratch:
    """Scratch for `places` rows of `vocab` logits."""

    def room(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(places, size, dtype=dtype, device=device)

    splits = triton.cdiv(vocab, SPLIT)
    return SampleScratch(
        best=room(splits, torch.float32),
        where=room(splits, torch.int32),
        ranked=room(vocab, torch.float32) if nucleus else None,
        ids=room(vocab, torch.int64) if nucleus else None,
    )


@triton.jit
def _first_best(values, ids, WIDE: tl.constexpr):
    """The largest value and the lowest id that has it."""
    best = tl.max(values, axis=0)
    return best, tl.min(tl.where(values == best, ids, WIDE), axis=0)


@triton.jit
def _clean(x):
    """NaN as -inf."""
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _split_kernel(
    logits, s_logits, best, s_best, where, s_where, V: tl.constexpr, SPLIT: tl.constexpr, EARLY: tl.constexpr
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = part * SPLIT + tl.arange(0, SPLIT)
    wait_for_kernel_ahead(EARLY)
    x = _clean(tl.load(logits + row * s_logits + v, mask=v < V, other=float("-inf")))
    top, first = _first_best(x, v, _NEVER)
    tl.store(best + row * s_best + part, top)
    tl.store(where + row * s_where + part, first)


@triton.jit
def _combine_kernel(
    best, s_best, where, s_where, out, SPLITS: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDTH)
    wait_for_kernel_ahead(EARLY)
    # `first` is an id where the split lies first among equals: ids grow with the split.
    x = tl.load(best + row * s_best + part, mask=part < SPLITS, other=float("-inf"))
    ids = tl.load(where + row * s_where + part, mask=part < SPLITS, other=_NEVER)
    _, first = _first_best(x, ids, _NEVER)
    tl.store(out + row, first.to(tl.int64))


@triton.jit
def _weight(x, best, warm):
    """Chance of a logit, but for a common factor. The largest has 1, so no temperature makes infinity of it."""
    return tl.where(x == best, 1.0, tl.exp((x - best) / warm))


@triton.jit
def _nucleus_kernel(
    ranked, s_ranked, ids, s_ids, position, seed, temperature, top_p, out, V: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    here, warm = tl.load(position + row), tl.load(temperature + row)
    if (here >= 0) & (warm > 0):
        line = ranked + row * s_ranked
        best = tl.load(line)
        v = tl.arange(0, TILE)
        total = 0.0
        for at in range(0, V, TILE):
            x = tl.load(line + at + v, mask=at + v < V, other=float("-inf"))
            total += tl.sum(tl.where(at + v < V, _weight(x, best, warm), 0.0), axis=0)
        wanted = tl.maximum(tl.load(top_p + row) * total, 1e-30)  # the likeliest is always in the set
        # The set, and its sum: tile after tile until the chances before it reach `wanted`.
        kept, before, at = 0.0, 0.0, 0
        while (at < V) & (before < wanted):
            x = tl.load(line + at + v, mask=at + v < V, other=float("-inf"))
            chance = tl.where(at + v < V, _weight(x, best, warm), 0.0)
            earlier = before + tl.cumsum(chance, axis=0) - chance
            kept += tl.sum(tl.where(earlier < wanted, chance, 0.0), axis=0)
            before += tl.sum(chance, axis=0)
            at += TILE
        goal = tl.rand(tl.load(seed + row), here) * kept
        # The first whose running sum passes the goal; the last of the set if rounding lets none.
        before, at = 0.0, 0
        place = -1
        while (at < V) & (place < 0):
            x = tl.load(line + at + v, mask=at + v < V, other=float("-inf"))
            chance = tl.where(at + v < V, _weight(x, best, warm), 0.0)
            sums = before + tl.cumsum(chance, axis=0)
            inside = (at + v < V) & (sums - chance < wanted)
            passed = tl.min(tl.where(inside & (sums > goal), at + v, V), axis=0)
            last = tl.max(tl.where(inside, at + v, -1), axis=0)
            ended = (last < at + TILE - 1) | (at + TILE >= V)
            place = tl.where(passed < V, passed, tl.where(ended, tl.maximum(last, at - 1), -1))
            before += tl.sum(chance, axis=0)
            at += TILE
        tl.store(out + row, tl.load(ids + row * s_ids + place))


def greedy(logits: torch.Tensor, out: torch.Tensor, scratch: SampleScratch, *, early: int = AT_END) -> None:
    """See `sample.reference.greedy`: logits float32 [B, vocab], out int64 [B]. Two launches.

    early  see `kernels.early`
    """
    batch, vocab = logits.shape
    best, where = scratch.best[:batch], scratch.where[:batch]
    splits = triton.cdiv(vocab, SPLIT)
    require_shape(best, "scratch.best", B=batch, splits=splits)
    require_shape(out, "out", B=batch)
    require_device(logits=logits, out=out, best=best)
    require_contiguous_rows(logits=logits, out=out)
    _split_kernel[grid(batch, vocab)](
        logits, logits.stride(0), best, best.stride(0), where, where.stride(0), V=vocab, SPLIT=SPLIT, num_warps=8,
        **launch_early(early),
    )  # fmt: skip
    _combine_kernel[(batch,)](
        best, best.stride(0), where, where.stride(0), out, SPLITS=splits, WIDTH=padded(splits), num_warps=1,
        **launch_early(early),
    )  # fmt: skip


def sample_tokens(
    logits: torch.Tensor,
    *,
    position: torch.Tensor,
    seed: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    out: torch.Tensor,
    scratch: SampleScratch,
) -> None:
    """See `sample.reference.nucleus`; the draw of each row comes from its seed and position.

    logits       float32 [B, vocab]
    position     int32 [B], of the token that gave the logits; -1: takes the greedy one
    seed         int64 [B]
    temperature, top_p   float32 [B], 0 = greedy; on the device, so that a captured step follows a change
    out          int64 [B]
    Greedy's two launches, a sort, and one program a row that stops once its token is known.
    """
    batch, vocab = logits.shape
    named = {"position": position, "seed": seed, "temperature": temperature, "top_p": top_p, "out": out}
    for name, tensor in named.items():
        require_shape(tensor, name, B=batch)
    require_contiguous_rows(**named)
    if scratch.ranked is None or scratch.ids is None:
        raise ConfigError("scratch was made for greedy alone; call sample_scratch(..., nucleus=True)")
    greedy(logits, out, scratch)
    ranked, ids = scratch.ranked[:batch], scratch.ids[:batch]
    require_shape(ranked, "scratch.ranked", B=batch, vocab=vocab)
    seen = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    torch.sort(seen, dim=-1, descending=True, stable=True, out=(ranked, ids))
    _nucleus_kernel[(batch,)](
        ranked, ranked.stride(0), ids, ids.stride(0), position, seed, temperature, top_p, out,
        V=vocab, TILE=min(TILE, padded(vocab)), num_warps=8,
    )  # fmt: skip


def grid(batch: int, vocab: int) -> tuple[int, int]:
    """Programs of the first launch of `greedy`."""
    return batch, triton.cdiv(vocab, SPLIT)
