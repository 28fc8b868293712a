"""Distil a Forecast from a frozen model: one window a step, every layer on its own.

The teacher is the query-driven selector (per-head softmax over entries, summed over the group,
pooled to blocks); the student one dot product a group from the layer before. Both are renormalised
over the free blocks, since forced ones need no forecast (SparDA, section 3; our objective "block").
The frozen model runs once a window without gradient and each layer's graph is one small product,
released before the next layer is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch

from sparda_core.distill.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.scores import block_loss
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights, query_mean
from sparda_core.models.tiny import random_forecast

OnStep = Callable[[int, float], None]


@attrs.frozen(kw_only=True, eq=False)
class TrainResult:
    """The trained projections, mean loss over layers at every step (nats), wall time of all steps, resumed or not."""

    forecast: ForecastWeights
    losses: tuple[float, ...]
    wall_s: float


def initial_weights(decoder: Decoder, config: TrainConfig) -> list[torch.Tensor]:
    """Weights before the first step, by the layer they forecast: float32 [G * D, hidden] each."""
    shape = decoder.shape
    wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
    if config.init == "random":
        drawn = random_forecast(shape, seed=config.seed, dtype=wide)
        return [w.to(decoder.device) for w in (drawn.own, *drawn.following)]
    return [query_mean(decoder.query_weight(layer).to(wide), shape) for layer in range(shape.layers)]


def as_forecast(weights: Sequence[torch.Tensor]) -> ForecastWeights:
    """Weights by the layer they forecast -> weights by the layer they sit in."""
    return ForecastWeights(own=weights[0].detach().clone(), following=tuple(w.detach().clone() for w in weights[1:]))


def train(
    decoder: Decoder,
    ids_N: torch.Tensor,
    config: TrainConfig,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 50,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> TrainResult:
    """Train every layer's Forecast on windows of a token stream.

    ids_N       int [N], N >= config.window; cut into windows, which are read in a seeded order
    checkpoint  file written every `checkpoint_every` steps and after the last, in one step each
    resume      go on from `checkpoint` if it exists; the result is that of an uninterrupted run
    on_step     called as on_step(steps done, loss)
    raises      ConfigError for too little text or a checkpoint of another run
    """
    if checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every={checkpoint_every} must be >= 1")
    if len(ids_N) < config.window:
        raise ConfigError(f"the text has {len(ids_N)} tokens, must be >= window={config.window}: add text")
    weights = [w.clone().requires_grad_() for w in initial_weights(decoder, config)]
    optimiser = torch.optim.AdamW(weights, lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    earlier_s = 0.0
    if resume and checkpoint is not None and checkpoint.exists():
        saved = read_checkpoint(checkpoint, config, ids_N)
        losses, earlier_s = saved.restore(weights, optimiser), saved.wall_s
    start = time.perf_counter() - earlier_s
    for step in range(len(losses), config.steps):
        for group in optimiser.param_groups:
            group["lr"] = config.lr_at(step)
        window_T, positions_Q = draw(ids_N, step, config)
        losses.append(_step(decoder, window_T.to(decoder.device), positions_Q.to(decoder.device), config, weights))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        done = step + 1
        if checkpoint is not None and (done % checkpoint_every == 0 or done == config.steps):
            spent_s = time.perf_counter() - start
            write_checkpoint(checkpoint, Checkpoint.take(config, ids_N, weights, optimiser, losses, spent_s))
        if on_step is not None:
            on_step(done, losses[-1])
    return TrainResult(forecast=as_forecast(weights), losses=tuple(losses), wall_s=time.perf_counter() - start)


def draw(ids_N: torch.Tensor, step: int, config: TrainConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Window [T] and ascending query positions [Q] of a step, from the seed and the step's number alone.

    Nothing carries over from step to step, so a resumed run draws what an uninterrupted one would.
    Every window is read once before any is read again.
    """
    count = len(ids_N) // config.window
    turn, at = divmod(step, count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed((config.seed * 1_000_003 + turn) % 2**63))
    first = int(order[at]) * config.window
    source = torch.Generator().manual_seed(((config.seed + 1) * 7_368_787 + step) % 2**63)
    span = config.window - config.first_position
    chosen = torch.randperm(span, generator=source)[: config.positions].sort().values
    return ids_N[first : first + config.window], chosen + config.first_position


def _step(
    decoder: Decoder,
    window_T: torch.Tensor,
    positions_Q: torch.Tensor,
    config: TrainConfig,
    weights: Sequence[torch.Tensor],
) -> float:
    """Fill every weight's gradient; returns the mean loss over layers."""
    total: list[torch.Tensor] = []

    def learn(lesson: LayerLesson) -> None:
        teacher = lesson.teacher()
        weight = weights[lesson.layer]
        with torch.enable_grad():
            loss = block_loss(lesson.student(weight), teacher, lesson.free)
        (weight.grad,) = torch.autograd.grad(loss, weight)
        total.append(loss.detach())

    observe(decoder, window_T, positions_Q, config.spec, learn)
    return float(torch.stack(total).mean())
