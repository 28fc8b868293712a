"""Two-stage choice on a GPU, in decode: one launch, one program a (row, KV head); the choice itself is top-k's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sparda_core.errors import ConfigError
from sparda_core.kernels.checks import require_shape
from sparda_core.kernels.device import require_device
from sparda_core.kernels.early import AT_END, launch_early, wait_for_kernel_ahead
from sparda_core.kernels.pool.gpu import visible_keys
from sparda_core.kernels.topk.gpu import choose_options, choose_warps, require_dtypes
from sparda_core.kernels.topk.gpu_ranking import NEVER, ordered, take_best
from sparda_core.shapes import BlockSpec


@triton.jit
def _shortlist_kernel(
    scores, scores_b, scores_h, means, means_b, means_h, position, held, M, unseen,
    BLOCK: tl.constexpr, SINK: tl.constexpr, LOCAL: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr,
    REACH: tl.constexpr, SPILL: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.load(position + i_b)
    wait_for_kernel_ahead(EARLY)
    current = tl.maximum(at, 0) // BLOCK
    first_local = tl.maximum(current - LOCAL, 0)
    first_free = tl.minimum(first_local, SINK)
    candidates = tl.where(at >= 0, first_local - first_free, 0)
    if candidates > 0:
        scores += i_b * scores_b + i_h * scores_h
        means += i_b * means_b + i_h * means_h
        visible = visible_keys(at, unseen, held, WINDOW, STRIDE)
        i_m = first_free + tl.arange(0, TILE)
        compete = (i_m < first_local) & (i_m < M)
        score = tl.load(scores + i_m, mask=compete, other=float("-inf"))
        k = tl.minimum(candidates, KEEP - (first_free + current - first_local + 1))
        key = tl.where(i_m < first_local, ordered(score), NEVER)
        taken, _ = take_best(key, k, candidates, TILE)
        best = tl.full([TILE], float("-inf"), tl.float32)
        for i_r in tl.static_range(REACH + SPILL):
            c = i_m * REACH + i_r - SPILL
            seen = compete & (c >= 0) & (c < visible)
            mean = tl.load(means + c, mask=seen, other=float("-inf"))
            best = tl.maximum(best, tl.where(mean == mean, mean, float("-inf")))
        tl.store(scores + i_m, tl.where(taken, float("inf"), best), mask=compete)


def shortlist_scores(
    scores: torch.Tensor, means: torch.Tensor, position: torch.Tensor, spec: BlockSpec, unseen: int, *, keep: int,
    early: int = AT_END,
) -> None:  # fmt: skip
    """`shortlist.reference.shortlist_scores` for one query, in place, of the blocks that are not forced.

    scores    float32 [B, Hk, M], of the first stage; read and written. Forced blocks and those after the current one
              are left as they are
    means     float32 [B, Hk, C]; those whose last token is at or before position - unseen count, a NaN does not
    position  int32 [B]; -1: nothing is written
    keep      blocks of the first stage, forced ones included; at least the forced ones
    early     see `kernels.early`; position must not be the previous kernel's doing
    Leading strides are free. Raises ConfigError on what does not fit.
    """
    batch, heads, blocks = scores.shape
    require_shape(means, "means", B=batch, Hk=heads, C=None)
    require_shape(position, "position", B=batch)
    require_dtypes(float32={"scores": scores, "means": means}, int32={"position": position})
    require_device(scores=scores, means=means, position=position)
    if keep < spec.forced:
        raise ConfigError(f"keep={keep} must be >= {spec.forced}: forced blocks are of the first stage")
    tile = choose_options(blocks, spec)["TILE"]
    _shortlist_kernel[batch, heads](
        scores, *scores.stride()[:2], means, *means.stride()[:2], position, means.shape[2], blocks, unseen,
        BLOCK=spec.block, SINK=spec.sink, LOCAL=spec.local, KEEP=keep, TILE=tile,
        REACH=spec.entries_per_block, SPILL=spec.spill, WINDOW=spec.window, STRIDE=spec.stride,
        num_warps=choose_warps(tile), **launch_early(early),
    )  # fmt: skip
