"""The published training's loss, as its release computes it: clamps, padding and rounding included.

Target: probabilities of the true queries on a fine grid (kernel 2, stride 1), summed over the heads of a group, an
entry visible from its first token on; max-pooled to the grid of selection; divided by their sum + 1e-8. Prediction:
softmax over entries visible from their first token on, divided by its sum + 1e-8. Support: entries 4b .. 4b + 3 of
the blocks that the target selects and that are not forced; everything else is one bucket, the difference of sums.
Both are clamped to 1e-8 and divided by their sum; places that no block takes hold 1e-8 on either side. The loss is
the mean over KV heads and all positions of KL(target || prediction) (SparDA's release, training of MiniCPM). A NOSA
model's selection has two stages, of which a Forecast replaces the first: its support is that stage's blocks, 23 free
ones of 41 where 96 are attended, and so `spec` has their budget (SparDA's release, training of NOSA).

From the softmax on it rounds to the frozen model's dtype, bfloat16 there. Two things are not taken over, since
they are no part of the loss: the weights are float32 here, and the sum over a window is not rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.recall import top_free
from sparda_core.distill.scores import pool_blocks
from sparda_core.distill.teachers import Grid, Teacher
from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

_CLAMP = 1e-8


class ReferenceLoss:
    """The loss on a teacher's `grid`, rounding to `dtype` where the release does."""

    def __init__(self, grid: Grid, spec: BlockSpec, dtype: torch.dtype) -> None:
        """Raises ConfigError where the grid of selection is no multiple of the teacher's."""
        if spec.stride % grid.stride:
            raise ConfigError(
                f"teacher stride={grid.stride} must divide the entries' stride={spec.stride} for objective 'reference'"
            )
        self.grid, self.spec, self.dtype = grid, spec, dtype

    def bind(self, lesson: LayerLesson) -> Callable[[LayerLesson, torch.Tensor], torch.Tensor]:
        """Round what all queries of a layer share."""
        teacher, keys = self._teacher(lesson), lesson.entries.to(self.dtype).to(lesson.k.dtype)
        return lambda part, forecast_GQD: self._loss(part, forecast_GQD, teacher, keys)

    def selection(self, lesson: LayerLesson) -> Callable[[LayerLesson], torch.Tensor]:
        """The target pooled to blocks, as selection pools entries."""
        teacher = self._teacher(lesson)
        return lambda part: pool_blocks(self._target(part, teacher), part.blocks, self.spec)

    def _teacher(self, lesson: LayerLesson) -> Teacher:
        """On selection's own grid an entry counts from its last token on, on a finer one from its first."""
        own = self.grid == Grid(self.spec.window, self.spec.stride)
        entries = self.grid.entries(lesson.k).to(self.dtype).to(lesson.k.dtype)
        return Teacher(grid=self.grid, spec=self.spec, entries=entries, by="end" if own else "start")

    def _target(self, part: LayerLesson, teacher: Teacher) -> torch.Tensor:
        return self._shares(teacher.aligned(part).to(self.dtype))

    def _loss(
        self, part: LayerLesson, forecast_GQD: torch.Tensor, teacher: Teacher, keys: torch.Tensor
    ) -> torch.Tensor:
        selection_grid = Grid(self.spec.window, self.spec.stride)
        target = self._target(part, teacher)
        score = forecast_GQD @ keys.transpose(-1, -2) / forecast_GQD.shape[-1] ** 0.5
        seen = selection_grid.visible(part.positions, keys.shape[1], by="start")
        share = score.masked_fill(~seen, -torch.inf).softmax(-1).to(self.dtype)
        share = self._shares(share)
        kept = self._kept(target, part)
        return _divergence(self._bucketed(target, kept, part), self._bucketed(share, kept, part))

    def _shares(self, mass: torch.Tensor) -> torch.Tensor:
        return mass / (mass.sum(-1, keepdim=True) + _CLAMP)

    def _kept(self, target: torch.Tensor, part: LayerLesson) -> torch.Tensor:
        """Bool [G, Q, C]: entries that start in a selected block that is not forced."""
        chosen = top_free(pool_blocks(target, part.blocks, self.spec), part.free, self.spec.free)
        return chosen.repeat_interleave(self.spec.entries_per_block, -1)[..., : target.shape[-1]]

    def _bucketed(self, share: torch.Tensor, kept: torch.Tensor, part: LayerLesson) -> torch.Tensor:
        """Kept entries, 0 in places that none takes, and the rest: [G, Q, entries_per_block * selected + 1]."""
        places = self.spec.entries_per_block * min(self.spec.budget, part.blocks)
        order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        held = share.masked_fill(~kept, 0.0).gather(-1, order[..., :places])
        held = torch.nn.functional.pad(held, (0, places - held.shape[-1]))
        rest = (share.sum(-1, keepdim=True) - held.sum(-1, keepdim=True)).clamp_min(0)
        mass = torch.cat((held, rest), -1).clamp_min(_CLAMP)
        return mass / mass.sum(-1, keepdim=True)


def _divergence(target: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Sum of KL; terms in the dtype of the release, the sum in float32 or wider."""
    terms = target * (target.log() - share.log())
    return terms.sum(dtype=torch.float64 if terms.dtype == torch.float64 else torch.float32)
