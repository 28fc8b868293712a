"""Recall of the query-driven selector's free blocks, one layer early, on text nobody trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch

from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.scores import query_entry_scores
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights, query_mean
from sparda_core.shapes import BlockSpec

BUDGETS = (8, 12, 16, 24)
Score = Callable[[LayerLesson], torch.Tensor]


@attrs.frozen(kw_only=True)
class RecallConfig:
    """Where recall is measured: every `every`-th position from `first` on in windows of `window` tokens."""

    spec: BlockSpec = attrs.field(factory=BlockSpec)
    budgets: tuple[int, ...] = BUDGETS
    window: int = 8192
    first: int = 4096
    every: int = 32
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.first < self.window or self.every < 1:
            raise ConfigError(f"first={self.first} must be in [0, window={self.window}) and every={self.every} >= 1")
        for budget in self.budgets:
            if self.spec.with_budget(budget).free < 1:
                raise ConfigError(f"budget={budget} must be > forced={self.spec.forced}: nothing is free to recall")

    def positions(self) -> torch.Tensor:
        """Int64 [Q], ascending."""
        return torch.arange(self.first, self.window, self.every)


def top_free(score_GQN: torch.Tensor, free_QN: torch.Tensor, count: int) -> torch.Tensor:
    """Bool [G, Q, N]: the `count` best free blocks, fewer where fewer are free; ties go to the lower id."""
    masked = score_GQN.masked_fill(~free_QN, -torch.inf)
    order = masked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    chosen = torch.zeros_like(masked, dtype=torch.bool).scatter_(-1, order, value=True)
    return chosen & free_QN


def recall_of(chosen_GQN: torch.Tensor, wanted_GQN: torch.Tensor) -> float:
    """Share of the wanted blocks that were chosen, mean over KV heads and positions."""
    hits = (chosen_GQN & wanted_GQN).sum(-1).double()
    return float((hits / wanted_GQN.sum(-1).clamp_min(1)).mean())


def methods(decoder: Decoder, forecast: ForecastWeights | None, *, seed: int) -> dict[str, Score]:
    """Block scores [G, Q, N] by method; all but `oracle` and `window` use only what is known a lesson's lead early.

    forecast             the trained projections, if any; of the lead with which lessons are observed
    query-mean           the Forecast before any training
    infinigen-token      summed raw logits of the proxy query on single tokens, as InfiniGen's release pools them
    infinigen-entry      the same on entries
    infinigen-softmax    per-head softmax of the proxy query on entries, summed
    random, window       seeded noise; the newest free blocks
    oracle               exact attention mass of the true query per block
    """
    shape = decoder.shape

    def query_rows(lesson: LayerLesson) -> torch.Tensor:
        return decoder.query_weight(lesson.layer).to(lesson.x_before.dtype)

    def proxy(lesson: LayerLesson) -> torch.Tensor:
        """The target layer's own query of the earlier input [Hq, Q, D], biases and norms of heads included."""
        return decoder.query_of(lesson.layer, lesson.x_before[None], lesson.turn)[0]

    def noise(lesson: LayerLesson) -> torch.Tensor:
        source = torch.Generator().manual_seed(seed * 1009 + lesson.layer)
        return torch.rand(shape.kv_heads, *lesson.free.shape, generator=source).to(lesson.free.device)

    def recent(lesson: LayerLesson) -> torch.Tensor:
        ids_N = torch.arange(lesson.blocks, device=lesson.free.device, dtype=torch.float32)
        return ids_N.expand(shape.kv_heads, *lesson.free.shape)

    def soft(lesson: LayerLesson) -> torch.Tensor:
        return lesson.pool(query_entry_scores(proxy(lesson), lesson.entries, lesson.visible))

    table: dict[str, Score] = {
        "query-mean": lambda lesson: lesson.student(query_mean(query_rows(lesson), shape)),
        "infinigen-token": lambda lesson: _token_scores(lesson, proxy(lesson)),
        "infinigen-entry": lambda lesson: lesson.pool(_summed_entry_scores(lesson, proxy(lesson))),
        "infinigen-softmax": soft,
        "random": noise,
        "window": recent,
        "oracle": _attention_mass,
    }
    if forecast is not None:
        weights = forecast.by_target
        table = {
            "forecast": lambda lesson: lesson.student(weights[lesson.layer].to(lesson.x_before)),
            **table,
        }
    return table


def _summed_entry_scores(lesson: LayerLesson, proxy: torch.Tensor) -> torch.Tensor:
    groups = lesson.entries.shape[0]
    summed = proxy.reshape(groups, -1, *proxy.shape[1:]).sum(1)
    score: torch.Tensor = summed @ lesson.entries.transpose(-1, -2)
    return score.masked_fill(~lesson.visible, -torch.inf)


def _token_scores(lesson: LayerLesson, proxy: torch.Tensor) -> torch.Tensor:
    """Largest summed logit among a block's tokens and the one before it, [G, Q, N]."""
    block, groups = lesson.spec.block, lesson.k.shape[0]
    score: torch.Tensor = proxy.reshape(groups, -1, *proxy.shape[1:]).sum(1) @ lesson.k.transpose(-1, -2)
    future = torch.arange(score.shape[-1], device=score.device)[None] > lesson.positions[:, None]
    score = score.masked_fill(future, -torch.inf)
    right = lesson.blocks * block - score.shape[-1]
    return torch.nn.functional.pad(score, (1, right), value=-torch.inf).unfold(-1, block + 1, block).amax(-1)


def _attention_mass(lesson: LayerLesson) -> torch.Tensor:
    """Attention probability per block, summed over the group, [G, Q, N]; one group at a time, for memory."""
    block, groups = lesson.spec.block, lesson.k.shape[0]
    future = torch.arange(lesson.k.shape[1], device=lesson.k.device)[None] > lesson.positions[:, None]
    out = []
    queries = lesson.q.reshape(groups, -1, *lesson.q.shape[1:])
    for g, (k_TD, q_hQD) in enumerate(zip(lesson.k, queries, strict=True)):
        logit: torch.Tensor = q_hQD @ k_TD.t() / k_TD.shape[-1] ** 0.5
        if lesson.bias is not None:
            logit += lesson.bias[g]
        share_QT = logit.masked_fill(future, -torch.inf).softmax(-1).sum(0)
        padded = torch.nn.functional.pad(share_QT, (0, lesson.blocks * block - share_QT.shape[-1]))
        out.append(padded.view(padded.shape[0], lesson.blocks, block).sum(-1))
    return torch.stack(out)


@attrs.frozen(kw_only=True)
class RecallTable:
    """Recall [method][budget][layer], mean over KV heads, positions and windows; `lead` layers early."""

    by_layer: Mapping[str, Mapping[int, Sequence[float]]]
    layers: int
    windows: int
    lead: int = 1

    def mean(self, method: str, budget: int, *, first_layer: int | None = None) -> float:
        """Mean over layers from `first_layer` on; from `lead` on if left out: those before choose for themselves.

        raises  ConfigError where no layer is left.
        """
        first_layer = self.lead if first_layer is None else first_layer
        layers = self.by_layer[method][budget][first_layer:]
        if not layers:
            raise ConfigError(f"first_layer={first_layer} must be < layers={len(self.by_layer[method][budget])}")
        return sum(layers) / len(layers)


def measure_recall(
    decoder: Decoder,
    windows: Sequence[torch.Tensor],
    forecast: ForecastWeights | None,
    config: RecallConfig,
    *,
    on_window: Callable[[int], None] | None = None,
) -> RecallTable:
    """Compare every method's free blocks with the query-driven selector's, all as early as the Forecast (or 1) looks.

    windows    int [T >= config.window] each; only the first config.window tokens are used
    on_window  called with the number of windows done
    raises     ConfigError if a window is too short or there is none
    """
    short = [len(w) for w in windows if len(w) < config.window]
    if short or not windows:
        raise ConfigError(f"windows of {short or 'no'} tokens: each must have >= window={config.window} tokens")
    table = methods(decoder, forecast, seed=config.seed)
    layers, lead = decoder.shape.layers, 1 if forecast is None else forecast.lead
    sums = {name: {b: [0.0] * layers for b in config.budgets} for name in table}

    def judge(lesson: LayerLesson) -> None:
        truth = lesson.teacher()
        scores = {name: score(lesson) for name, score in table.items()}
        for budget in config.budgets:
            free = config.spec.with_budget(budget).free
            wanted = top_free(truth, lesson.free, free)
            for name, score in scores.items():
                sums[name][budget][lesson.layer] += recall_of(top_free(score, lesson.free, free), wanted)

    positions_Q = config.positions().to(decoder.device)
    with torch.no_grad():
        for done, window in enumerate(windows, start=1):
            observe(decoder, window[: config.window].to(decoder.device), positions_Q, config.spec, judge, lead=lead)
            if on_window is not None:
                on_window(done)
    count = len(windows)
    by_layer = {
        name: {budget: [value / count for value in per_layer] for budget, per_layer in rows.items()}
        for name, rows in sums.items()
    }
    return RecallTable(by_layer=by_layer, layers=layers, windows=count, lead=lead)
