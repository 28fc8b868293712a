"""Choosing blocks on a GPU, in decode: one launch, one program a (row, KV head), no sort.

Only blocks between the sink and the local band compete; the others are arithmetic. So at 128K tokens 2015 scores of
2049 fit a tile of 2048.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.device_view import Choice
from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import padded, require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.topk.gpu_ranking import NEVER, ordered, take_best, tile_of
from sparda_core.shapes import BlockSpec


@triton.jit
def choose_row(
    scores, blocks, counts, position, M,
    BLOCK: tl.constexpr, SINK: tl.constexpr, LOCAL: tl.constexpr, BUDGET: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One (row, head): scores [M] to blocks [BUDGET] and one count."""
    i_w = tl.arange(0, WIDTH)
    if position < 0:
        tl.store(blocks + i_w, -1, mask=i_w < BUDGET)
        tl.store(counts, 0)
    else:
        current = position // BLOCK
        first_local = tl.maximum(current - LOCAL, 0)
        first_free = tl.minimum(first_local, SINK)
        candidates = first_local - first_free
        forced = first_free + current - first_local + 1
        k = tl.minimum(candidates, BUDGET - forced)
        i_m = first_free + tl.arange(0, TILE)
        compete = i_m < first_local
        score = tl.load(scores + i_m, mask=compete & (i_m < M), other=float("-inf"))
        key = tl.where(compete, ordered(score), NEVER)
        taken, place = take_best(key, k, candidates, TILE)
        tl.store(blocks + first_free + place, i_m, mask=taken)
        # The sink before them, the local band and padding after them.
        band = first_local + i_w - first_free - k
        rest = tl.where(i_w < first_free, i_w, tl.where(band <= current, band, -1))
        tl.store(blocks + i_w, rest, mask=(i_w < BUDGET) & ((i_w < first_free) | (i_w >= first_free + k)))
        tl.store(counts, forced + k)


@triton.jit
def _choose_kernel(
    scores, scores_b, scores_h, position, blocks, blocks_b, blocks_h, counts, counts_b, M,
    BLOCK: tl.constexpr, SINK: tl.constexpr, LOCAL: tl.constexpr, BUDGET: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    choose_row(
        scores + i_b * scores_b + i_h * scores_h, blocks + i_b * blocks_b + i_h * blocks_h,
        counts + i_b * counts_b + i_h, at, M,
        BLOCK, SINK, LOCAL, BUDGET, WIDTH, TILE,
    )  # fmt: skip


def choose_blocks(
    scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec, choice: Choice, *, early: int = AT_END
) -> None:
    """Forced blocks and the best of the free ones: `topk.reference.choose_blocks` for one query, exactly.

    scores    float32 [B, Hk, M]; NaN ranks as -inf; nothing at or beyond the current block is read. A row reaches
              fewer than M blocks
    position  int32 [B], absolute; -1 for a place without an active row, which selects nothing
    choice    written: blocks [B, Hk, budget] ascending, -1 last; counts. Equal scores go to the lower id
    early     see `kernels.early`; position must not be the previous kernel's doing

    Axes before the last may have any stride. Raises ConfigError on a shape, dtype or device that does not fit.
    """
    check_choice(scores, position, spec, choice)
    options = choose_options(scores.shape[2], spec)
    _choose_kernel[choice.counts.shape](
        scores, scores.stride(0), scores.stride(1), position, choice.blocks, *choice.blocks.stride()[:2],
        choice.counts, choice.counts.stride(0), scores.shape[2], **options, num_warps=choose_warps(options["TILE"]),
        **launch_early(early),
    )  # fmt: skip


def choose_for_queries(scores: torch.Tensor, positions: torch.Tensor, spec: BlockSpec) -> torch.Tensor:
    """Of many queries a row, as a prompt has them: `topk.reference.choose_blocks`, on tensors of a GPU.

    scores [B, Hk, T, M], integer positions [B, T]; returns int32 [B, Hk, T, budget]. Every query is a place of its own.
    """
    batch, heads, queries, blocks = scores.shape
    if not (batch * queries and blocks):
        return torch.full((batch, heads, queries, spec.budget), -1, dtype=torch.int32, device=scores.device)
    ranks = scores.float().transpose(1, 2).reshape(batch * queries, heads, blocks)
    places = (batch * queries, heads)
    choice = Choice(
        blocks=torch.empty(*places, spec.budget, dtype=torch.int32, device=scores.device),
        counts=torch.empty(places, dtype=torch.int32, device=scores.device),
    )
    choose_blocks(ranks, positions.reshape(-1).to(torch.int32), spec, choice)
    return choice.blocks.reshape(batch, queries, heads, spec.budget).transpose(1, 2).contiguous()


def check_choice(scores: torch.Tensor, position: torch.Tensor, spec: BlockSpec, choice: Choice) -> None:
    """Raise ConfigError where scores, positions and a selection do not fit together."""
    require_device(scores=scores, position=position, blocks=choice.blocks, counts=choice.counts)
    batch, heads = choice.counts.shape
    require_shape(scores, "scores", B=batch, Hk=heads, M=None)
    require_shape(position, "position", B=batch)
    require_shape(choice.blocks, "blocks", B=batch, Hk=heads, budget=spec.budget)
    require_dtypes(float32={"scores": scores}, int32={"position": position, "blocks": choice.blocks})
    require_dtypes(int32={"counts": choice.counts})


def require_dtypes(**tensors: dict[str, torch.Tensor]) -> None:
    """Raise ConfigError unless every tensor has the dtype that it is listed under, and a contiguous last axis."""
    for dtype, named in tensors.items():
        for name, tensor in named.items():
            if tensor.dtype is not getattr(torch, dtype):
                raise ConfigError(f"{name} is {tensor.dtype}; want torch.{dtype}")
            if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
                raise ConfigError(f"{name} has strides {tensor.stride()}; its last axis must be contiguous")


def choose_options(blocks: int, spec: BlockSpec) -> dict[str, int]:
    """Constants of the kernel for rows of up to `blocks` blocks."""
    return {
        "BLOCK": spec.block, "SINK": spec.sink, "LOCAL": spec.local, "BUDGET": spec.budget,
        "WIDTH": padded(spec.budget), "TILE": tile_of(max(1, blocks - spec.forced), "blocks of a row"),
    }  # fmt: skip


def choose_warps(tile: int) -> int:
    """Warps of a program: one a scheduler of an SM, more where keys would not fit registers."""
    return 4 if tile <= 4096 else 8
