"""What a Forecast learns: KL(teacher || student) over one choice of blocks or entries, by name.

    block      scores pooled to blocks, the free ones alone: what selection will compare
    free       entries of free blocks alone
    all        every visible entry
    top        entries of the teacher's best free blocks, as many as the budget leaves, and one bucket for the rest
    reference  the published training's loss, its clamps and its rounding included (reference.py)
    nosa       the same of a NOSA model: of its selection, the blocks of the first stage alone

All but the last two are clean: float32, the student in log space, the rest bucket by logsumexp, so that the gradient
is largest where the student is most wrong. Teacher and student are both renormalised over the choice. Sums run over
KV heads and queries; queries to which nothing can be taught count as zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch

from sparda_core.distill.config import PUBLISHED, TrainConfig
from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.recall import top_free
from sparda_core.distill.reference import ReferenceLoss
from sparda_core.distill.scores import forecast_entry_scores
from sparda_core.distill.teachers import Grid, Teacher
from sparda_core.errors import UnknownNameError

_TINY = 1e-30

Loss = Callable[[torch.Tensor, LayerLesson, Teacher], torch.Tensor]
#: A part of a lesson and its forecast heads [G, Q, D] -> the sum of the loss over heads and queries.
PartLoss = Callable[[LayerLesson, torch.Tensor], torch.Tensor]
#: A part of a lesson -> block scores [G, Q, N].
BlockScores = Callable[[LayerLesson], torch.Tensor]


class Objective(Protocol):
    """How one layer's loss is made."""

    grid: Grid

    def bind(self, lesson: LayerLesson) -> PartLoss:
        """Make once what all queries of a layer share."""

    def selection(self, lesson: LayerLesson) -> BlockScores:
        """By what the teacher selects blocks of this layer."""


def divergence(target: torch.Tensor, score: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Sum of KL(target || softmax(score)), both over `counted` alone; a scalar in nats.

    target   >= 0, [..., M], no gradient; score [..., M], any real number where counted
    counted  bool, broadcast over both; rows without any, or without target there, count as zero
    """
    target = target.masked_fill(~counted, 0.0)
    share = target / target.sum(-1, keepdim=True).clamp_min(_TINY)
    # A row of -inf alone has no softmax, and its gradient would be NaN even where it is multiplied by zero.
    some = counted.any(-1, keepdim=True)
    log_p = torch.where(some, score.masked_fill(~counted, -torch.inf), torch.zeros_like(score)).log_softmax(-1)
    terms: torch.Tensor = torch.special.xlogy(share, share) - share * log_p.masked_fill(~counted, 0.0)
    return terms.sum()


def block_loss(forecast_GQD: torch.Tensor, part: LayerLesson, teacher: Teacher) -> torch.Tensor:
    """Scores pooled to blocks, free blocks alone."""
    score = part.pool(forecast_entry_scores(forecast_GQD, part.entries, part.visible))
    return divergence(teacher.blocks(part), score, part.free)


def free_loss(forecast_GQD: torch.Tensor, part: LayerLesson, teacher: Teacher) -> torch.Tensor:
    """Entries that start in a free block."""
    score = forecast_entry_scores(forecast_GQD, part.entries, part.visible)
    return divergence(teacher.aligned(part), score, starts_in(part.free, part) & part.visible)


def all_loss(forecast_GQD: torch.Tensor, part: LayerLesson, teacher: Teacher) -> torch.Tensor:
    """Every visible entry."""
    score = forecast_entry_scores(forecast_GQD, part.entries, part.visible)
    return divergence(teacher.aligned(part), score, part.visible)


def top_loss(
    forecast_GQD: torch.Tensor, part: LayerLesson, teacher: Teacher, taught: int | None = None
) -> torch.Tensor:
    """Entries of the teacher's `taught` best free blocks (the budget's if left out), all else as one more outcome."""
    target = teacher.aligned(part).masked_fill(~part.visible, 0.0)
    best = top_free(part.pool(target), part.free, part.spec.free if taught is None else taught)
    kept = starts_in(best, part) & part.visible
    score = forecast_entry_scores(forecast_GQD, part.entries, part.visible)
    others = part.visible & ~kept
    rest = torch.where(others, score, -torch.inf)
    some = others.any(-1, keepdim=True)
    rest = torch.where(some, rest, torch.zeros_like(rest)).logsumexp(-1, keepdim=True)
    return divergence(
        torch.cat((target, target.masked_fill(~others, 0.0).sum(-1, keepdim=True)), -1),
        torch.cat((score, rest), -1),
        torch.cat((kept, some), -1),
    )


def starts_in(blocks: torch.Tensor, part: LayerLesson) -> torch.Tensor:
    """Blocks [..., Q, N] -> entries [..., Q, C] whose first token lies in one of them."""
    count = part.entries.shape[1]
    per_block = part.spec.entries_per_block
    return blocks.repeat_interleave(per_block, -1)[..., :count]


class CleanObjective:
    """One of the losses above on a teacher's grid."""

    def __init__(self, loss: Loss, grid: Grid) -> None:
        self.grid, self._loss = grid, loss

    def bind(self, lesson: LayerLesson) -> PartLoss:
        """The teacher's keys are averaged once for all queries."""
        teacher = Teacher.of(lesson, self.grid)
        return lambda part, forecast_GQD: self._loss(forecast_GQD, part, teacher)

    def selection(self, lesson: LayerLesson) -> BlockScores:
        """Probabilities pooled to blocks."""
        return Teacher.of(lesson, self.grid).blocks


OBJECTIVES: dict[str, Loss] = {"block": block_loss, "free": free_loss, "all": all_loss, "top": top_loss}


def make_objective(config: TrainConfig, dtype: torch.dtype) -> Objective:
    """The objective of a run; `dtype` is the frozen model's, in which the published loss rounds.

    raises  UnknownNameError, ConfigError for a grid that does not fit
    """
    grid = Grid.parse(config.teacher, config.spec)
    if config.objective in PUBLISHED:
        return ReferenceLoss(grid, config.taught, dtype)
    if config.objective not in OBJECTIVES:
        raise UnknownNameError(what="objective", name=config.objective, known=(*OBJECTIVES, *PUBLISHED))
    if config.objective == "top":
        return CleanObjective(functools.partial(top_loss, taught=config.taught.free), grid)
    return CleanObjective(OBJECTIVES[config.objective], grid)
