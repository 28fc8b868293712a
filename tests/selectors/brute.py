"""Scores by plain loops over one query: nothing shared with what is tested."""

from __future__ import annotations

import math

import torch

from sparda_core.shapes import BlockSpec


def entries(keys_ND: torch.Tensor, spec: BlockSpec) -> list[torch.Tensor]:
    """Means of the full windows of one head's keys."""
    starts = range(0, keys_ND.shape[0] - spec.window + 1, spec.stride)
    return [keys_ND[start : start + spec.window].mean(0) for start in starts]


def softmax(logits: list[float]) -> list[float]:
    top = max(logits, default=0.0)
    powers = [math.exp(logit - top) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def pooled(scores: list[float], *, per_block: int, blocks: int, before: int) -> list[float]:
    """Best of the scores in a block and of so many before it."""
    return [
        max(scores[max(0, per_block * b - before) : per_block * (b + 1)], default=-math.inf) for b in range(blocks)
    ]  # fmt: skip


def best(scores: list[float], position: int, spec: BlockSpec) -> list[int]:
    """Forced blocks and the best of the others, ascending, -1 last."""
    forced = set(spec.forced_blocks(position))
    free = sorted((-score, b) for b, score in enumerate(scores[: position // spec.block + 1]) if b not in forced)
    chosen = sorted([*forced, *(b for _, b in free[: spec.budget - len(forced)])])
    return chosen + [-1] * (spec.budget - len(chosen))


def query_scores(query_GD: torch.Tensor, keys_ND: torch.Tensor, position: int, spec: BlockSpec) -> list[float]:
    """Per-head softmax over entries, summed, pooled."""
    seen = entries(keys_ND[: position + 1], spec)
    shares = [softmax([float(q @ kc) / math.sqrt(q.numel()) for kc in seen]) for q in query_GD]
    totals = [sum(share[c] for share in shares) for c in range(len(seen))]
    blocks, before = position // spec.block + 1, spec.window // spec.stride - 1
    return pooled(totals, per_block=spec.entries_per_block, blocks=blocks, before=before)


def dot_scores(f_D: torch.Tensor, keys_ND: torch.Tensor, position: int, spec: BlockSpec) -> list[float]:
    """Dot products with entries, pooled."""
    totals = [float(f_D @ kc) for kc in entries(keys_ND[: position + 1], spec)]
    blocks, before = position // spec.block + 1, spec.window // spec.stride - 1
    return pooled(totals, per_block=spec.entries_per_block, blocks=blocks, before=before)


def bias_scores(bias_N: torch.Tensor, position: int, spec: BlockSpec) -> list[float]:
    """Means of every full window of biases, pooled."""
    means = [float(mean) for mean in entries(bias_N[: position + 1], spec)]
    blocks, before = position // spec.block + 1, spec.window // spec.stride - 1
    return pooled(means, per_block=spec.entries_per_block, blocks=blocks, before=before)


def two_stages(first: list[float], then: list[float], position: int, spec: BlockSpec, *, keep: int) -> list[int]:
    """The best `keep` by the first scores, forced ones among them, and the best of the others by the second."""
    kept = {block for block in best(first, position, spec.with_budget(keep)) if block >= 0}
    return best([math.inf if b in kept else score for b, score in enumerate(then)], position, spec)


def token_scores(query_GD: torch.Tensor, keys_ND: torch.Tensor, position: int, spec: BlockSpec) -> list[float]:
    """Token logits summed over the group, pooled over the block and the token before it."""
    totals = [float(sum(q @ key for q in query_GD)) for key in keys_ND[: position + 1]]
    return pooled(totals, per_block=spec.block, blocks=position // spec.block + 1, before=1)


def mass(query_GD: torch.Tensor, keys_ND: torch.Tensor, position: int, spec: BlockSpec) -> list[float]:
    """Attention that each block receives, summed over the group."""
    shares = [softmax([float(q @ key) / math.sqrt(q.numel()) for key in keys_ND[: position + 1]]) for q in query_GD]
    blocks = range(position // spec.block + 1)
    return [sum(sum(share[spec.block * b : spec.block * (b + 1)]) for share in shares) for b in blocks]
