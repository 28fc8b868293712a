"""Misses of choices by rank against device pools of 1, 2 and 4 selections, under every policy.

A pool as large as the selection holds just that, whatever the policy; `last-selection` uses no more however large it
is. `lru` has a stack distance: a block is there if fewer others than there are slots were selected since. `score`
keeps what the current scores rank best, which depends on what was there, so its steps are played one after another,
all methods, budgets and sizes side by side. Blocks that were last selected in the same step are equal under lru: the
higher id stays. A runtime's pool goes by slot there, an order that no selection decides (sparda_core/policy.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from sparda_core.evaluate.study.ranks import Bounds

#: Values sorted at once by `lru`.
_MOST = {"cuda": 2**27, "cpu": 2**23}


@attrs.frozen(kw_only=True, eq=False)
class Stretch:
    """Consecutive positions at which selections meet pools.

    bounds     of the positions
    opens      bool [Q, N], the block that a step's own token opens: selected, never a miss
    forced     blocks of a budget that are forced
    budgets    blocks selected
    multiples  pool sizes in selections
    warm       first steps, which fill the slots and are not counted; >= 1
    """

    bounds: Bounds
    opens: torch.Tensor
    forced: int
    budgets: tuple[int, ...]
    multiples: tuple[int, ...]
    warm: int

    @classmethod
    def of(
        cls, positions_Q: torch.Tensor, bounds: Bounds, *, forced: int, block: int, budgets: Sequence[int],
        multiples: Sequence[int], warm: int,
    ) -> Stretch:  # fmt: skip
        """For consecutive positions."""
        opens = torch.zeros_like(bounds.forced)
        opens.scatter_(1, (positions_Q // block)[:, None], (positions_Q % block == 0)[:, None])
        return cls(
            bounds=bounds, opens=opens, forced=forced, budgets=tuple(budgets), multiples=tuple(multiples), warm=warm
        )

    def selected(self, rank_XQN: torch.Tensor, budget: int) -> torch.Tensor:
        """Bool [X, Q, N], forced blocks included."""
        return self.bounds.chosen(rank_XQN, budget - self.forced) | self.bounds.forced


def moved(stretch: Stretch, rank_XQN: torch.Tensor, budget: int) -> dict[str, float]:
    """Blocks that a mean counted step of one of X streams selects ("all"), of them free, and new since the step before.

    "fresh" is the misses under last-selection, and under any policy where the pool is one selection large.
    """
    selected, warm = stretch.selected(rank_XQN, budget), stretch.warm
    now = selected[:, warm:]
    steps = now.shape[0] * now.shape[1]
    sums = {
        "all": now.sum(),
        "free": (now & stretch.bounds.free[warm:]).sum(),
        "fresh": (now & ~stretch.opens[warm:] & ~selected[:, warm - 1 : -1]).sum(),
    }
    return {name: float(total) / steps for name, total in sums.items()}


def lru_misses(stretch: Stretch, rank_XQN: torch.Tensor, budget: int) -> dict[int, float]:
    """Misses in a mean counted step, by pool size in selections."""
    steps, blocks = rank_XQN.shape[1:]
    warm, device = stretch.warm, rank_XQN.device
    step_Q1 = torch.arange(steps, device=device, dtype=torch.int32)[:, None]
    ids_N = torch.arange(blocks, device=device)
    missed = dict.fromkeys(stretch.multiples, 0)
    for part in torch.split(rank_XQN, max(1, _MOST["cuda" if rank_XQN.is_cuda else "cpu"] // (steps * blocks))):
        selected = stretch.selected(part, budget)
        last = torch.where(selected, step_Q1, -1).cummax(1).values[:, warm - 1 : -1]
        # When each block was selected last, as one number that also orders blocks of one step.
        order = (last.to(torch.int64) * blocks + ids_N).sort(dim=-1, descending=True).indices
        place = torch.empty_like(order).scatter_(-1, order, ids_N.expand_as(order))
        wanted = selected[:, warm:] & ~stretch.opens[warm:]
        for multiple in stretch.multiples:
            missed[multiple] += int((wanted & ((last < 0) | (place >= multiple * budget))).sum())
    return {multiple: count / (rank_XQN.shape[0] * (steps - warm)) for multiple, count in missed.items()}


def score_misses(stretch: Stretch, rank_MXQN: torch.Tensor) -> torch.Tensor:
    """Misses under `score` in a mean counted step, float64 [M methods, budgets, multiples].

    Each step evicts, of what it does not select, what its own scores rank last, and no more than it must.
    """
    methods, streams, steps, blocks = rank_MXQN.shape
    device = rank_MXQN.device
    count = torch.tensor([b - stretch.forced for b in stretch.budgets], device=device)[:, None, None]
    slots = torch.tensor(
        [[[m * b] for m in stretch.multiples] for b in stretch.budgets], device=device
    )  # [B, S, 1]
    there = torch.zeros(methods, streams, *slots.shape[:2], blocks, dtype=torch.bool, device=device)
    missed = torch.zeros(methods, *slots.shape[:2], dtype=torch.int64, device=device)
    ids_N = torch.arange(blocks, device=device)
    for step in range(steps):
        rank = rank_MXQN[:, :, step, None, None, :].long()
        ranked = torch.empty_like(rank).scatter_(-1, rank, ids_N.expand_as(rank))  # ids, the best first
        now = ((rank < count) & stretch.bounds.free[step]) | stretch.bounds.forced[step]
        if step >= stretch.warm:
            missed += (now & ~stretch.opens[step] & ~there).sum((1, 4))
        others = there & ~now
        before = others.gather(-1, ranked.expand_as(there)).cumsum(-1, dtype=torch.int16)
        kept = (before <= slots - now.sum(-1, keepdim=True)).gather(-1, rank.expand_as(there))
        there = now | (others & kept)
    return missed.double() / (streams * (steps - stretch.warm))
