"""Ranks of blocks, and what a choice by rank is worth: recall, attention mass, churn."""

from __future__ import annotations

import attrs
import torch

from sparda_core.distill.scores import free_blocks
from sparda_core.shapes import BlockSpec


@attrs.frozen(kw_only=True, eq=False)
class Bounds:
    """Which blocks are free and which forced at Q positions, bool [Q, N] both; the rest lies in the future."""

    free: torch.Tensor
    forced: torch.Tensor

    @classmethod
    def of(cls, positions_Q: torch.Tensor, blocks: int, spec: BlockSpec) -> Bounds:
        """Sink, the local band and the current block are forced."""
        free = free_blocks(positions_Q, blocks, spec)
        there = torch.arange(blocks, device=positions_Q.device)[None] <= (positions_Q // spec.block)[:, None]
        return cls(free=free, forced=there & ~free)

    def chosen(self, rank_GQN: torch.Tensor, count: int) -> torch.Tensor:
        """Bool [G, Q, N]: the `count` best free blocks, fewer where fewer are free; no forced ones."""
        return (rank_GQN < count) & self.free


def rank_free(score_GQN: torch.Tensor, free_QN: torch.Tensor) -> torch.Tensor:
    """Place of each block among the free ones, int16 [G, Q, N], 0 the best; blocks that are not free come last.

    Equal scores go to the lower id. A free block without a score ranks before those that are not free.
    """
    lowest = torch.finfo(score_GQN.dtype).min
    score = score_GQN.clamp_min(lowest).masked_fill(~free_QN, -torch.inf)
    order = score.sort(dim=-1, descending=True, stable=True).indices
    place = torch.arange(score.shape[-1], device=score.device, dtype=torch.int16)
    return torch.empty_like(order, dtype=torch.int16).scatter_(-1, order, place.expand_as(order).contiguous())


def recall(chosen_GQN: torch.Tensor, wanted_GQN: torch.Tensor) -> float:
    """Share of the wanted blocks that were chosen, mean over heads and the positions that want any."""
    wanted = wanted_GQN.sum(-1)
    share = (chosen_GQN & wanted_GQN).sum(-1).double() / wanted.clamp_min(1)
    some = wanted > 0
    return float(share[some].mean()) if bool(some.any()) else float("nan")


def chance(free_QN: torch.Tensor, count: int) -> float:
    """Recall of a blind choice: chosen / free blocks, mean over the positions that have free ones."""
    free = free_QN.sum(-1)
    some = free > 0
    share = free.clamp(max=count).double() / free.clamp_min(1)
    return float(share[some].mean()) if bool(some.any()) else float("nan")


def captured(mass_GQN: torch.Tensor, chosen_GQN: torch.Tensor) -> float:
    """Attention mass on the chosen blocks, mean over heads and positions."""
    return float((mass_GQN * chosen_GQN).sum(-1).double().mean())


def churn(chosen_GQN: torch.Tensor, forced_QN: torch.Tensor) -> float:
    """Free blocks that were not in the selection of the position before / free blocks (evaluate/churn.py's `free`)."""
    selected = chosen_GQN | forced_QN
    fresh = (chosen_GQN[:, 1:] & ~selected[:, :-1]).sum()
    return float(fresh.double() / chosen_GQN[:, 1:].sum().clamp_min(1))
