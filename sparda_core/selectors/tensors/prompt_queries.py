"""The queries of a row's prompt, kept for calibration."""

from __future__ import annotations

from typing import Self

import attrs
import torch


@attrs.frozen(eq=False)
class PromptQueries:
    """The first prompt queries of one row and layer; immutable, so that forks share it.

    pieces  [Hq, n, D] each, of positions 0, 1, ... without a gap
    """

    pieces: tuple[torch.Tensor, ...] = ()

    @property
    def count(self) -> int:
        """Queries held."""
        return sum(piece.shape[1] for piece in self.pieces)

    def added(self, start: int, queries: torch.Tensor, *, limit: int) -> Self:
        """With queries [Hq, n, D] of positions start, start + 1, ...; at most `limit` in all. They are copied.

        Queries after a gap, that is after tokens that were generated and not read, are left out.
        """
        room = min(limit - self.count, queries.shape[1])
        if room <= 0 or start != self.count:
            return self
        return type(self)((*self.pieces, queries[:, :room].clone()))

    def cropped(self, tokens: int) -> Self:
        """Only those of positions below `tokens`."""
        if tokens >= self.count:
            return self
        return type(self)((self.stacked(self.pieces[0])[:, :tokens],) if tokens else ())

    def stacked(self, like: torch.Tensor) -> torch.Tensor:
        """[Hq, count, D]; `like` [Hq, T, D] gives sizes and dtype where there are none."""
        return torch.cat(self.pieces, dim=1) if self.pieces else like[:, :0]
