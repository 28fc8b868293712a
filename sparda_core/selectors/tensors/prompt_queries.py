"""The queries of a row's prompts, kept for calibration."""

from __future__ import annotations

from typing import Self

import attrs
import torch


@attrs.frozen(eq=False)
class PromptQueries:
    """Some prompt queries of one row and layer; immutable, so that forks share it.

    pieces  (position of the first, [Hq, n, D]) each, in order; between two of them may lie tokens that were not read
    """

    pieces: tuple[tuple[int, torch.Tensor], ...] = ()

    @property
    def count(self) -> int:
        """Queries held."""
        return sum(queries.shape[1] for _, queries in self.pieces)

    @property
    def stop(self) -> int:
        """The position after the last of them; 0 where there are none."""
        return self.pieces[-1][0] + self.pieces[-1][1].shape[1] if self.pieces else 0

    def added(self, start: int, queries: torch.Tensor) -> Self:
        """With queries [Hq, n, D] of positions start, start + 1, ..., all after those held; they are copied.

        They lie on the CPU from then on, in float32 where they were narrower: sessions have many rows.
        """
        if not queries.shape[1]:
            return self
        kept = queries if queries.dtype == torch.float64 else queries.float()
        return type(self)((*self.pieces, (start, kept.to("cpu", copy=True))))

    def cropped(self, tokens: int) -> Self:
        """Only those of positions below `tokens`."""
        if tokens >= self.stop:
            return self
        left = ((start, queries[:, : tokens - start]) for start, queries in self.pieces if start < tokens)
        return type(self)(tuple(left))

    def stacked(self, like: torch.Tensor) -> torch.Tensor:
        """[Hq, count, D]; `like` [Hq, T, D] gives sizes and dtype where there are none."""
        return torch.cat([queries for _, queries in self.pieces], dim=1) if self.pieces else like[:, :0]
