"""What a proxy query is held against: one class a form of InfiniGen scoring."""

from __future__ import annotations

import abc

import torch

from sparda_core.kernels.score_forecast.cpu import forecast_block_scores
from sparda_core.kernels.score_query.cpu import query_block_scores
from sparda_core.layer_view import LayerView
from sparda_core.shapes import ModelShape


class ProxyScorer(abc.ABC):
    """Turns a proxy query into block scores. Narrow hook: `block_scores`; the rest is for those that keep state."""

    @abc.abstractmethod
    def block_scores(self, proxy: torch.Tensor, view: LayerView) -> torch.Tensor:
        """Proxy query [B, Hq, T, D] for view.layer -> [B, Hk, T, M]."""

    def observe(self, view: LayerView, key: torch.Tensor) -> None:  # noqa: B027
        """See new tokens of view.layer; key [B, Hk, T, D]."""

    def row_forked(self, source: int, copy: int) -> None:  # noqa: B027
        """Row `copy` starts as a copy of `source`."""

    def row_reads(self, row: int, tokens: int) -> None:  # noqa: B027
        """Row `row` of `tokens` tokens begins to read a prompt."""

    def row_cropped(self, row: int, tokens: int) -> None:  # noqa: B027
        """Row `row` was cut to its first `tokens` tokens."""

    def row_retired(self, row: int) -> None:  # noqa: B027
        """Row `row` is gone."""


class EntryRaw(ProxyScorer):
    """Logits with the entries, summed over the group: one dot product with the group's summed query."""

    def __init__(self, *, kv_heads: int) -> None:
        self._kv_heads = kv_heads

    def block_scores(self, proxy: torch.Tensor, view: LayerView) -> torch.Tensor:
        """As a Forecast is scored: neither scale nor softmax changes the order within a head."""
        batch, _, queries, width = proxy.shape
        summed = proxy.reshape(batch, self._kv_heads, -1, queries, width).sum(2)
        return forecast_block_scores(summed, view.entries, view.positions, view.spec)


class EntrySoftmax(ProxyScorer):
    """As query-driven selection does, with the proxy in the query's place."""

    def block_scores(self, proxy: torch.Tensor, view: LayerView) -> torch.Tensor:
        """Per-head softmax over the entries, summed over the group, pooled."""
        return query_block_scores(proxy, view.entries, view.positions, view.spec)


def make_scorer(scoring: str, *, shape: ModelShape, channels: int, lead: int, calibration_tokens: int) -> ProxyScorer:
    """The scorer of one of `sparda_core.selectors.infinigen.SCORINGS`."""
    if scoring == "entry-raw":
        return EntryRaw(kv_heads=shape.kv_heads)
    if scoring == "entry-softmax":
        return EntrySoftmax()
    from sparda_core.selectors.tensors.partial_keys import TokenScorer

    return TokenScorer(
        kv_heads=shape.kv_heads, channels=channels, first_layer=lead, calibration_tokens=calibration_tokens
    )
