"""GPU half of `query`."""

from __future__ import annotations

import torch

from sparda_core.device_view import DeviceView
from sparda_core.kernels.score_query.gpu import QueryScratch, query_block_scores, query_scratch
from sparda_core.selector import DeviceRoom
from sparda_core.selectors.device.scored import ScoredDevice
from sparda_core.selectors.own_query import own_query


class DeviceQuery(ScoredDevice):
    """Scores blocks with the layer's own query. Keeps the logits of one layer at a time."""

    def __init__(self, room: DeviceRoom) -> None:
        super().__init__(room)
        self._scratch = scratch_of(room)
        self.used_bytes = self._scratch.nbytes

    def score(self, view: DeviceView) -> None:
        """Per-head softmax over the entries, summed over the group, pooled."""
        score_with(own_query(view), view, self._scratch, self.early)


def scratch_of(room: DeviceRoom) -> QueryScratch:
    """Scratch for every row that a session may hold, at its longest."""
    return query_scratch(
        places=room.places, q_heads=room.shape.q_heads, kv_heads=room.shape.kv_heads,
        entries=room.spec.entry_count(room.tokens), device=torch.device(room.device),
    )  # fmt: skip


def score_with(query: torch.Tensor, view: DeviceView, scratch: QueryScratch, early: int) -> None:
    """Fill view.scores as query-driven selection does, with any query [B, Hq, D]."""
    query_block_scores(
        query, view.entries, view.position, view.spec, view.unseen, view.scores, scratch, early=early
    )
