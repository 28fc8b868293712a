"""What a row's prompts say about its dimensions, in memory that hardly grows, and exact after a crop to any length."""

from __future__ import annotations

from typing import Self

import attrs
import torch

from sparda_core.selectors.tensors.prompt_queries import PromptQueries
from sparda_core.selectors.tensors.skew import first_dimensions, partial_projection, rotation_of, strength_of, strongest

#: Queries rotated at once, in values: 16 MiB in float64, and another 16 for what comes out.
MOST_VALUES = 2**21


@attrs.frozen(kw_only=True, eq=False)
class PromptStrength:
    """The queries that were read (not generated) of one row and layer; immutable, so that forks share it.

    The first `limit` of them make the rotation, and are held. How strong all others are is added up block by block of
    the row; blocks that were not read whole, at both ends of a prompt, do not count. So a crop has only to forget
    sums, and what is left is what a row would have that never was longer.

    limit     queries that make the rotation, >= 1
    block     tokens of a block
    head      the first `limit` queries
    rotation  [Hk, D, D] float64, None until the head is full
    totals    (position, [Hk, D] float64): strength of all that counts before that position, ascending; the first is
              the full head's, then comes one a block, which adds 8 Hk D bytes
    tail      queries of the block that is being read
    """

    limit: int
    block: int
    kv_heads: int
    head: PromptQueries = PromptQueries()
    rotation: torch.Tensor | None = None
    totals: tuple[tuple[int, torch.Tensor], ...] = ()
    tail: PromptQueries = PromptQueries()

    @property
    def counted(self) -> int:
        """Queries that the projection is made from."""
        return self.head.count + self.block * max(0, len(self.totals) - 1)

    def added(self, start: int, queries: torch.Tensor) -> Self:
        """With queries [Hq, n, D] of positions start, start + 1, ..., all after those seen before; on any device."""
        room = self.limit - self.head.count
        if room <= 0:
            return self._beyond_head(start, queries)
        head = self.head.added(start, queries[:, :room])
        if head.count < self.limit:
            return attrs.evolve(self, head=head)
        whole = head.stacked(queries)
        rotation = rotation_of(whole, kv_heads=self.kv_heads)
        there = queries.device  # a GPU multiplies faster than it takes to bring the head back
        strength = strength_of(whole.to(there), rotation.to(there)).cpu()
        full = attrs.evolve(self, head=head, rotation=rotation, totals=((head.stop, strength),))
        return full.added(start + room, queries[:, room:])

    def cropped(self, tokens: int) -> Self:
        """Without what came at or after position `tokens`."""
        head = self.head.cropped(tokens)
        if head.count < self.head.count:
            return attrs.evolve(self, head=head, rotation=None, totals=(), tail=PromptQueries())
        left = tuple(total for total in self.totals if total[0] <= tokens)
        return attrs.evolve(self, totals=left, tail=self.tail.cropped(tokens))

    def projection(self, like: torch.Tensor, *, channels: int) -> torch.Tensor:
        """[Hk, D, channels] of the dtype and on the device of `like` [Hq, T, D]; see `skew.partial_projection`.

        A row that has read nothing keeps its first dimensions, unskewed.
        """
        if not self.head.count:
            return first_dimensions(like, kv_heads=self.kv_heads, channels=channels)
        if self.rotation is None:
            made = partial_projection(self.head.stacked(like), kv_heads=self.kv_heads, channels=channels)
        else:
            made = strongest(self.rotation, self.totals[-1][1], channels=channels)
        return made.to(like)

    def _beyond_head(self, start: int, queries: torch.Tensor) -> Self:
        first = -(-start // self.block) * self.block
        if self.tail.count and self.tail.stop == start:
            first = self.tail.pieces[0][0]
            queries = torch.cat((self.tail.stacked(queries).to(queries), queries), dim=1)
        else:
            queries = queries[:, first - start :]
        whole = queries.shape[1] // self.block * self.block
        tail = PromptQueries().added(first + whole, queries[:, whole:])
        return attrs.evolve(self, totals=self._totals_with(first, queries[:, :whole]), tail=tail)

    def _totals_with(self, start: int, queries: torch.Tensor) -> tuple[tuple[int, torch.Tensor], ...]:
        """With whole blocks, the first of which begins at `start`. One after the other: a sum depends on its order."""
        assert self.rotation is not None, "beyond the head there is a rotation"
        heads, tokens, width = queries.shape
        rotation, totals = self.rotation.to(queries.device), list(self.totals)
        blocks = queries.reshape(heads, tokens // self.block, self.block, width).transpose(0, 1)
        at_once = max(1, MOST_VALUES // (heads * self.block * width))
        for some in range(0, len(blocks), at_once):
            for strength in strength_of(blocks[some : some + at_once], rotation).cpu():
                totals.append((start + self.block, totals[-1][1] + strength))
                start += self.block
        return tuple(totals)
