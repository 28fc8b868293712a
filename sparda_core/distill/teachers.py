"""What the true queries of a layer look at, on any grid of compressed keys.

A grid is a window and a stride. "coarse" is the grid that selection uses, "fine" is 2/1, the published
training's: nearly single keys, so that a key which its neighbours average away still counts. Probabilities
are computed for a few queries and one KV head at a time and pooled at once: [Hk, N, N] never exists.
"""

from __future__ import annotations

import attrs
import torch
from torch.nn import functional as F  # noqa: N812

from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.scores import query_entry_scores
from sparda_core.errors import ConfigError
from sparda_core.shapes import BlockSpec

FINE = (2, 1)


@attrs.frozen
class Grid:
    """Keys averaged over `window` tokens every `stride` tokens."""

    window: int
    stride: int

    @classmethod
    def parse(cls, text: str, spec: BlockSpec) -> Grid:
        """Read "coarse", "fine" or "window/stride".

        raises  ConfigError where it is neither, or where it does not divide the block
        """
        if text == "coarse":
            return cls(spec.window, spec.stride)
        if text == "fine":
            return cls(*FINE)
        window, _, stride = text.partition("/")
        if not (window.isdecimal() and stride.isdecimal() and int(stride)):
            raise ConfigError(f"teacher={text!r} must be coarse, fine or WINDOW/STRIDE in tokens, as in 8/4")
        grid = cls(int(window), int(stride))
        if grid.window % grid.stride or grid.window < 1 or spec.block % grid.stride:
            raise ConfigError(
                f"teacher={text!r} must have a window that is a multiple of its stride, "
                f"and a stride that divides block={spec.block}"
            )
        if grid.window > max(spec.block, spec.window):
            raise ConfigError(
                f"teacher={text!r} must have a window <= {max(spec.block, spec.window)}, the tokens of a block: "
                "a longer one blurs the blocks that are to be told apart"
            )
        return grid

    def entries(self, k_GTD: torch.Tensor) -> torch.Tensor:
        """Mean of every full window of keys, [G, J, D] in their dtype."""
        if k_GTD.shape[1] < self.window:
            return k_GTD.new_zeros(k_GTD.shape[0], 0, k_GTD.shape[2])
        if self.window == 1:
            return k_GTD[:, :: self.stride]
        return k_GTD.unfold(1, self.window, self.stride).mean(-1)

    def visible(self, positions_Q: torch.Tensor, count: int, *, by: str = "end") -> torch.Tensor:
        """Bool [Q, J]: visible once its last token (by "end") or its first one ("start") is not after the query."""
        reach = self.window - 1 if by == "end" else 0
        first_J = torch.arange(count, device=positions_Q.device) * self.stride
        return first_J[None, :] + reach <= positions_Q[:, None]


@attrs.frozen(eq=False)
class Teacher:
    """Targets of one layer on `grid`; `entries` [G, J, D] are made once and serve all queries.

    by  "end" or "start", see Grid.visible; the published training counts an entry from its first token on
    """

    grid: Grid
    spec: BlockSpec
    entries: torch.Tensor
    by: str = "end"

    @classmethod
    def of(cls, lesson: LayerLesson, grid: Grid) -> Teacher:
        """The clean teacher of a layer: an entry is visible from its last token on."""
        return cls(grid=grid, spec=lesson.spec, entries=grid.entries(lesson.k))

    def probabilities(self, part: LayerLesson, group: int) -> torch.Tensor:
        """Sum over the heads of one KV head of per-head softmax over visible entries, [Q, J]; 0 where invisible."""
        heads = part.q.shape[0] // self.entries.shape[0]
        visible = self.grid.visible(part.positions, self.entries.shape[1], by=self.by)
        q_HQD = part.q[group * heads : (group + 1) * heads]
        return query_entry_scores(q_HQD, self.entries[group : group + 1], visible)[0]

    def blocks(self, part: LayerLesson) -> torch.Tensor:
        """Largest probability among the entries that touch a block, [G, Q, N]; on selection's grid, its own pool."""
        groups = range(self.entries.shape[0])
        if self.grid == Grid(self.spec.window, self.spec.stride):
            return part.pool(torch.stack([self.probabilities(part, group) for group in groups]))
        per_block = self.spec.block // self.grid.stride
        before = self.grid.window // self.grid.stride - 1
        pooled = []
        for group in groups:
            p_QJ = self.probabilities(part, group)
            right = per_block * part.blocks - p_QJ.shape[-1]
            pooled.append(F.pad(p_QJ, (before, right)).unfold(-1, per_block + before, per_block).amax(-1))
        return torch.stack(pooled)

    def aligned(self, part: LayerLesson) -> torch.Tensor:
        """Probabilities on the grid of selection, [G, Q, C] (section 4.1 of the published training's loss).

        The largest of stride / grid.stride + 1 probabilities, from the one before an entry's start on. The
        grid of selection itself is left as it is.
        raises  ConfigError where the stride of selection is no multiple of the grid's
        """
        ratio, rest = divmod(self.spec.stride, self.grid.stride)
        if rest:
            raise ConfigError(
                f"teacher stride={self.grid.stride} must divide the entries' stride={self.spec.stride} "
                "for an objective that compares entries; choose objective 'block' or another grid"
            )
        count = part.entries.shape[1]
        rows = [align(self.probabilities(part, g), ratio, count) for g in range(self.entries.shape[0])]
        return torch.stack(rows)


def align(p_QJ: torch.Tensor, ratio: int, count: int) -> torch.Tensor:
    """Max pool of width ratio + 1, stride ratio, one place of padding on the left, cut or filled to `count`: [Q, C]."""
    if ratio > 1:
        short = max(0, ratio * count - p_QJ.shape[-1])
        p_QJ = F.pad(p_QJ, (1, short)).unfold(-1, ratio + 1, ratio).amax(-1)
    return F.pad(p_QJ, (0, max(0, count - p_QJ.shape[-1])))[:, :count]
