"""GPU half of `infinigen`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparda_core.device_view import DeviceView
from sparda_core.selector import BoundSelector, DeviceRoom
from sparda_core.selectors.device.proxy import (
    DeviceEntryRaw,
    DeviceEntrySoftmax,
    DeviceProxyScorer,
    DeviceTokens,
)  # fmt: skip
from sparda_core.selectors.device.query import score_with, scratch_of
from sparda_core.selectors.device.scored import ScoredDevice
from sparda_core.selectors.infinigen import PROXY
from sparda_core.selectors.own_query import own_query
from sparda_core.selectors.tensors.infinigen import BoundInfiniGen


class DeviceInfiniGen(ScoredDevice):
    """Makes the proxy query and hands it to a scorer; falls to the own query in the first layers."""

    def __init__(self, room: DeviceRoom, *, scoring: str, channels: int) -> None:
        """`scoring` is one of `sparda_core.selectors.infinigen.SCORINGS`; channels matter to "token" only."""
        super().__init__(room)
        self._scratch = scratch_of(room)
        self._scorer: DeviceProxyScorer
        if scoring == "entry-raw":
            self._scorer = DeviceEntryRaw(room)
        elif scoring == "entry-softmax":
            self._scorer = DeviceEntrySoftmax(room, self._scratch)
        else:
            self._scorer = DeviceTokens(room, channels=channels)
        self.used_bytes = self._scratch.nbytes + self._scorer.used_bytes

    def run(self, kind: str, view: DeviceView) -> None:
        """`proxy` makes the proxy query; the rest as every scored method."""
        if kind == PROXY:
            self._scorer.take(view.query_of(view.layer, view.x), view)
        else:
            super().run(kind, view)

    def score(self, view: DeviceView) -> None:
        """From the proxy query, or from the own query where the layer selects for itself."""
        if view.source == view.layer:
            score_with(own_query(view), view, self._scratch, self.early)
        else:
            self._scorer.score(view)

    def observe(self, view: DeviceView) -> None:
        """Let the scorer see the new tokens of view.layer."""
        self._scorer.observe(view)

    def adopt(
        self, place: int, bound: BoundSelector, row: int, tokens: int,
        keys: Callable[[int], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Take over the row's channels from the CPU half, and project its keys."""
        assert isinstance(bound, BoundInfiniGen), f"the CPU half is a {type(bound).__name__}"
        self._scorer.adopt(place, bound.scorer, row, tokens, keys)

    def place_forked(self, source: int, copy: int) -> None:
        """What is known of the source is known of the copy."""
        self._scorer.copied(source, copy)

    def place_moved(self, source: int, target: int) -> None:
        """What is known of the row goes with it."""
        self._scorer.copied(source, target)
