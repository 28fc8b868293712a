"""In which order a method takes free blocks: one order for every budget, or, of NOSA's two stages, one for each."""

from __future__ import annotations

import attrs
import torch

from sparda_core.evaluate.study.ranks import Bounds, rank_free

#: Of NOSA-8B's 78 free blocks, those that go by the query: select_blocks=24 counts the query's own block.
SHARE = (23, 78)


@attrs.frozen(kw_only=True, eq=False)
class Order:
    """Ranks of one layer's blocks at Q positions.

    score     int16 [G, Q, N], by the method's score
    bias      [G, Q, N], block scores of the tokens' bias, by which a second stage goes; None without one
    bounds    of the positions
    select_blocks  blocks beside sink and local that go by the score; 0: NOSA-8B's share of the free ones
    """

    score: torch.Tensor
    bounds: Bounds
    bias: torch.Tensor | None = None
    select_blocks: int = 0

    def at(self, free: int) -> torch.Tensor:
        """Rank of every block when `free` free ones are taken, int16 [G, Q, N]; those that are not free come last.

        Of two stages the first gets the lowest ranks, by id, as a selector's scores have it (kernels/shortlist).
        """
        if self.bias is None:
            return self.score
        first = self.score < by_score(free, self.select_blocks)
        return rank_free(self.bias.masked_fill(first, torch.inf), self.bounds.free)

    def chosen(self, free: int) -> torch.Tensor:
        """Bool [G, Q, N]: the `free` free blocks that are taken."""
        return self.bounds.chosen(self.at(free), free)


def by_score(free: int, select_blocks: int) -> int:
    """Free blocks of the first stage, of `free` in all."""
    if select_blocks:
        return select_blocks - 1
    part, whole = SHARE
    return max(1, round(free * part / whole))
