"""What most GPU halves share: scores, then the one top-k; or a list without scores."""

from __future__ import annotations

import abc

from sparda_core.device_view import DeviceView
from sparda_core.errors import PlanError
from sparda_core.kernels.topk.gpu import choose_blocks
from sparda_core.selector import DeviceRoom, DeviceSelector
from sparda_core.selectors.declaration import SCORE, SELECT


class ScoredDevice(DeviceSelector):
    """Runs `score` and `select`. Narrow hook: `score`. The order rule is that of `choose_blocks`."""

    chooses_by_scores = True

    def __init__(self, room: DeviceRoom) -> None:
        self.early = room.early

    @abc.abstractmethod
    def score(self, view: DeviceView) -> None:
        """Fill view.scores up to each row's current block; larger is better, -inf without anything to score."""

    def run(self, kind: str, view: DeviceView) -> None:
        """`score` fills view.scores, `select` view.choice from it; another kind raises PlanError."""
        if kind == SCORE:
            self.score(view)
        elif kind == SELECT:
            choose_blocks(view.scores, view.position, view.spec, view.choice, early=self.early)
        else:
            raise PlanError(f"kind={kind!r} is not bound by {type(self).__name__}; it runs {SCORE!r} and {SELECT!r}")


class ListedDevice(DeviceSelector):
    """Runs `select` alone. Narrow hook: `fill`."""

    def __init__(self, room: DeviceRoom) -> None:
        self.early = room.early

    @abc.abstractmethod
    def fill(self, view: DeviceView) -> None:
        """Write a lawful selection into view.choice."""

    def run(self, kind: str, view: DeviceView) -> None:
        """`select` fills view.choice; another kind raises PlanError."""
        if kind != SELECT:
            raise PlanError(f"kind={kind!r} is not bound by {type(self).__name__}; it runs {SELECT!r}")
        self.fill(view)
