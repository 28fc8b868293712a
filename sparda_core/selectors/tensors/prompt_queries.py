"""The queries of a row's prompt, kept for calibration."""

from __future__ import annotations

from typing import Self

import attrs
import torch


@attrs.frozen(eq=False)
class PromptQueries:
    """The first prompt queries of one row and layer, in order; immutable, so that forks share it.

    pieces  (first position, queries [Hq, n, D]) of runs of consecutive positions
    """

    pieces: tuple[tuple[int, torch.Tensor], ...] = ()

    @property
    def count(self) -> int:
        """Queries held."""
        return sum(piece.shape[1] for _, piece in self.pieces)

    def added(self, start: int, queries: torch.Tensor, *, limit: int) -> Self:
        """With queries [Hq, n, D] of positions start, start + 1, ...; at most `limit` in all. They are copied."""
        room = min(limit - self.count, queries.shape[1])
        if room <= 0:
            return self
        return type(self)((*self.pieces, (start, queries[:, :room].clone())))

    def cropped(self, tokens: int) -> Self:
        """Only those of positions below `tokens`."""
        kept = [(start, piece[:, : tokens - start]) for start, piece in self.pieces if start < tokens]
        return type(self)(tuple(kept))

    def stacked(self, like: torch.Tensor) -> torch.Tensor:
        """[Hq, count, D]; `like` [Hq, T, D] gives sizes and dtype where there are none."""
        return torch.cat([piece for _, piece in self.pieces], dim=1) if self.pieces else like[:, :0]
