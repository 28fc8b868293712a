"""LastStep: what the last step of a GPU session left, told by rows. Reading it waits for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sparda_core.facts import StepFacts
from sparda_core.runtimes.gpu.last_selection import selection_of
from sparda_core.runtimes.gpu.machinery import Machinery
from sparda_core.runtimes.row_session import RowSession


class LastStep(RowSession):
    """Knows in which place each row lay in the last step, wherever it lies now."""

    _machinery: Machinery

    def __init__(self) -> None:
        super().__init__()
        self._place: dict[int, int] = {}  # row -> place; the places in use are the first ones
        # row -> its place in the last step and its length after it, of rows that were in it
        self._stepped: dict[int, tuple[int, int]] = {}

    def last_logits(self) -> torch.Tensor:
        """float32 [B, vocab] of the last step, in batch order, on the CPU; NaN for rows that sat it out."""
        self._check_open()
        made = self._machinery.logits().float().cpu()
        logits = made.new_full((len(self.rows), made.shape[1]), float("nan"))
        for i, row in enumerate(self.rows):
            if row in self._stepped:
                logits[i] = made[self._stepped[row][0]]
        return logits

    def last_facts(self) -> StepFacts:
        """What the last step met. Late blocks are 0: nobody looks at the clock in a replay (`decode` of a session with
        timeline=True does, and counts them).
        """
        places, lengths = self._last_step()
        return self._machinery.facts(places, lengths > 0, lengths)

    def last_selection(self) -> npt.NDArray[np.int32]:
        """int32 [L, B, Hk, budget]: blocks that the last step attended to, in batch order, -1 beyond them and for rows
        that sat it out. Raises ConfigError where attention took more blocks than the budget lists.
        """
        places, lengths = self._last_step()
        machinery = self._machinery
        unlisted = machinery.plan.resident_layers if machinery.half.takes_every_block else 0
        return selection_of(machinery.tiers.layers, places, lengths, self.spec, unlisted=unlisted)

    def _last_step(self) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Places in batch order, as they were, and rows' lengths after the last step; 0 for those that sat it out."""
        self._check_open()
        left = [self._stepped.get(row, (self._place[row], 0)) for row in self.rows]
        return [place for place, _ in left], np.array([length for _, length in left], np.int64)

    def tokens(self) -> dict[int, int]:
        """By row, the token that the next step of `run` takes."""
        self._check_open()
        drawn = self._machinery.rows.token.tolist()
        return {row: drawn[self._place[row]] for row in self.rows}
