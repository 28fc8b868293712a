"""What a proxy query is held against on a GPU: one class a form of InfiniGen scoring."""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch

from sparda_core.device_view import DeviceView
from sparda_core.errors import ConfigError, PlanError
from sparda_core.kernels.score_forecast.gpu import forecast_block_scores
from sparda_core.kernels.score_proxy.gpu import project_keys, project_query, proxy_block_scores
from sparda_core.kernels.score_query.gpu import QueryScratch
from sparda_core.selector import DeviceRoom
from sparda_core.selectors.device.query import score_with
from sparda_core.selectors.tensors.partial_keys import TokenScorer
from sparda_core.selectors.tensors.proxy_scores import ProxyScorer

#: layer -> post-RoPE keys [Hk, tokens, D] of a row.
KeysOf = Callable[[int], torch.Tensor]


class DeviceProxyScorer(abc.ABC):
    """Turns the proxy query last made into block scores. Narrow hooks: `take` and `score`."""

    used_bytes: int = 0

    def __init__(self, room: DeviceRoom) -> None:
        self._early = room.early

    def take(self, proxy: torch.Tensor, view: DeviceView) -> None:
        """The proxy query [B, Hq, D] of view.layer; `score` for the same layer comes next."""
        self._proxy = proxy

    @abc.abstractmethod
    def score(self, view: DeviceView) -> None:
        """Fill view.scores."""

    def observe(self, view: DeviceView) -> None:  # noqa: B027
        """See the new tokens of view.layer."""

    def adopt(self, place: int, scorer: ProxyScorer, row: int, tokens: int, keys: KeysOf | None) -> None:  # noqa: B027
        """Take over what the CPU half knows of a row."""

    def copied(self, source: int, target: int) -> None:  # noqa: B027
        """What is known of the row in place `source` is known of that in `target`."""


class DeviceEntryRaw(DeviceProxyScorer):
    """Logits with the entries, summed over the group: the scoring kernel adds the group's queries up itself."""

    def score(self, view: DeviceView) -> None:
        """As a Forecast is scored."""
        forecast_block_scores(
            self._proxy, view.entries, view.position, view.spec, view.unseen, view.scores, early=self._early
        )


class DeviceEntrySoftmax(DeviceProxyScorer):
    """As query-driven selection does, with the proxy in the query's place."""

    def __init__(self, room: DeviceRoom, scratch: QueryScratch) -> None:
        super().__init__(room)
        self._scratch = scratch

    def score(self, view: DeviceView) -> None:
        """Per-head softmax over the entries, summed over the group, pooled."""
        score_with(self._proxy, view, self._scratch, self._early)


class DeviceTokens(DeviceProxyScorer):
    """Logits with every token's key in a few skewed channels.

    partial     [L - first, B, Hk, tokens, w], every token's key in its place's channels
    projection  [L - first, B, Hk, D, w], chosen on the CPU from each row's prompt when its place adopts it, and kept
                until it adopts again; the first channels, unskewed, before

    A row that is cropped into its calibrated prompt must be adopted anew to select as one that never was longer.
    """

    def __init__(self, room: DeviceRoom, *, channels: int) -> None:
        super().__init__(room)
        self._first, self._scale = room.lead, float(channels) ** -0.5
        layers, heads, width = room.shape.layers - room.lead, room.shape.kv_heads, room.shape.head_dim

        def fresh(*size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=room.device)

        self._partial = fresh(layers, room.places, heads, room.tokens, channels, dtype=room.dtype)
        self._projection = fresh(layers, room.places, heads, width, channels, dtype=room.dtype)
        self._projection.copy_(torch.eye(width, channels))
        self._skewed = fresh(room.places, heads, channels, dtype=torch.float32)
        self.used_bytes = self._partial.nbytes + self._projection.nbytes + self._skewed.nbytes

    def take(self, proxy: torch.Tensor, view: DeviceView) -> None:
        """The group's summed proxy query in the kept channels; one launch."""
        places = proxy.shape[0]
        projection = self._projection[view.layer - self._first, :places]
        project_query(proxy, projection, view.position, self._skewed[:places], early=self._early)

    def score(self, view: DeviceView) -> None:
        """Logits of every token, pooled."""
        places = view.position.shape[0]
        partial = self._partial[view.layer - self._first, :places]
        proxy_block_scores(
            self._skewed[:places], partial, view.position, view.spec, view.unseen, self._scale, view.scores,
            early=self._early,
        )  # fmt: skip

    def observe(self, view: DeviceView) -> None:
        """Append the new tokens' partial keys."""
        if view.layer < self._first:
            return
        if view.key is None:
            raise PlanError(f"layer {view.layer} shows no key: selectors observe a layer while it runs itself")
        places, at = view.position.shape[0], view.layer - self._first
        project_keys(
            view.key, self._projection[at, :places], view.position, self._partial[at, :places], early=self._early
        )

    def adopt(self, place: int, scorer: ProxyScorer, row: int, tokens: int, keys: KeysOf | None) -> None:
        """Project all of the row's keys; raises ConfigError without `keys`, PlanError where the CPU half saw others."""
        assert isinstance(scorer, TokenScorer), f"the CPU half scores by {type(scorer).__name__}"
        if keys is None:
            raise ConfigError(
                "selector 'infinigen' with scoring='token' needs the keys of a row that it takes over: adopt(keys=...)"
            )
        for at in range(self._partial.shape[0]):
            layer = self._first + at
            known = keys(layer)
            projection = scorer.projection_of(row, layer, tokens, like=known).to(self._projection)
            self._projection[at, place].copy_(projection)
            self._partial[at, place, :, :tokens].copy_(known[:, :tokens].to(projection) @ projection)

    def copied(self, source: int, target: int) -> None:
        """Copy channels and partial keys, all that there is room for: how many are known is on the device only."""
        for kept in (self._projection, self._partial):
            kept[:, target].copy_(kept[:, source])
