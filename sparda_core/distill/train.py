"""Distil a Forecast from a frozen model: some rows a step, every layer on its own.

The teacher is the layer's true query, the student one dot product a group from the layer before; what of them is
compared is the objective's business (objectives.py). The frozen model runs once a row without gradient, and each
layer's graph is one small product, released before the next layer is reached. Weights, gradients and AdamW's
moments are float32 whatever the model's dtype (float64 for a float64 model).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch

from sparda_core.distill.backbone import Attend, layer_at_hand
from sparda_core.distill.checkpoint import Checkpoint, identity, read_checkpoint, write_checkpoint
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.history import Evaluation, History, Step
from sparda_core.distill.learn import layer_gradient
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.objectives import Objective, make_objective
from sparda_core.distill.own_states import DENSE, TEACHER, OwnStates
from sparda_core.distill.parallel import World
from sparda_core.distill.rows import Corpus, Draw, Rows, shared_out
from sparda_core.distill.selected import Selection
from sparda_core.errors import ConfigError
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights, query_mean
from sparda_core.models.tiny import random_forecast

OnStep = Callable[[Step], None]
#: Recall of these weights after this many steps, on text that is held out.
Evaluate = Callable[[ForecastWeights, int], Evaluation]
#: Called with the weights whenever an evaluation is the best so far.
OnBest = Callable[[ForecastWeights, Evaluation], None]


@attrs.frozen(kw_only=True, eq=False)
class TrainResult:
    """The trained projections, what every step told, wall time of all steps, resumed or not."""

    forecast: ForecastWeights
    history: History
    wall_s: float

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss over layers at every step (nats)."""
        return tuple(self.history.losses)


@attrs.frozen(kw_only=True)
class Habits:
    """What a run does beside learning; none of it changes what is learnt.

    checkpoint  file written every `checkpoint_every` steps and after the last, in one step each
    resume      go on from `checkpoint` if it exists; the result is that of an uninterrupted run
    evaluate    called every `evaluate_every` steps and after the last, by all processes
    best_by     which recall decides what `on_best` sees: "oracle" or "query"
    on_step     called after each step
    base_model  name of the frozen model, by which a checkpoint is known
    """

    checkpoint: Path | None = None
    checkpoint_every: int = attrs.field(default=50)
    resume: bool = False
    evaluate: Evaluate | None = None
    evaluate_every: int = attrs.field(default=50)
    best_by: str = attrs.field(default="oracle", validator=attrs.validators.in_(("oracle", "query")))
    on_best: OnBest | None = None
    on_step: OnStep | None = None
    base_model: str = ""

    @checkpoint_every.validator
    @evaluate_every.validator
    def _at_least_one(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value < 1:
            raise ConfigError(f"{attribute.name}={value} must be >= 1")


def initial_weights(decoder: Decoder, config: TrainConfig) -> list[torch.Tensor]:
    """Weights before the first step, by the layer they forecast: float32 [G * D, hidden] each."""
    shape = decoder.shape
    wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
    if config.init == "random":
        drawn = random_forecast(shape, seed=config.seed, dtype=wide, lead=config.lead)
        return [w.to(decoder.device) for w in drawn.by_target]
    weights = []
    for layer in range(shape.layers):
        with layer_at_hand(decoder, layer):
            weights.append(query_mean(decoder.query_weight(layer).to(wide), shape))
    return weights


def as_forecast(weights: Sequence[torch.Tensor], lead: int = 1) -> ForecastWeights:
    """Weights by the layer they forecast -> weights by the layer they sit in."""
    return ForecastWeights.of([w.detach().clone() for w in weights], lead=lead)


def train(
    decoder: Decoder,
    data: torch.Tensor | Corpus,
    config: TrainConfig,
    habits: Habits | None = None,
    *,
    world: World | None = None,
) -> TrainResult:
    """Train every layer's Forecast on rows of a corpus.

    data    tokens of whole documents; a tensor int [N] is one document
    world   this process among those that share the run; the result is the same on all, up to rounding
    raises  ConfigError for too little text, a batch that the processes cannot share evenly, or a checkpoint
            of another run, or once the loss is no longer a number
    """
    habits, world = habits or Habits(), world or World()
    corpus = data if isinstance(data, Corpus) else Corpus.one(data)
    if config.lead >= decoder.shape.layers:
        raise ConfigError(f"lead={config.lead} must be < layers={decoder.shape.layers}: lower the lead")
    check_stages(config, decoder)
    if config.batch % world.size:
        raise ConfigError(f"batch={config.batch} must be a multiple of the number of processes={world.size}")
    rows = Rows(corpus, window=config.window, mode=config.documents, least=config.first_position + 1)
    objective = make_objective(config, decoder.dtype)
    weights = [w.clone().requires_grad_() for w in initial_weights(decoder, config)]
    optimiser = torch.optim.AdamW(
        weights, lr=config.lr, betas=(0.9, 0.95), eps=config.eps, weight_decay=config.weight_decay
    )
    run = identity(config, corpus.sha256, habits.base_model)
    history, earlier_s = History(), 0.0
    if habits.resume and habits.checkpoint is not None and habits.checkpoint.exists():
        saved = read_checkpoint(habits.checkpoint, run, [w.shape for w in weights])
        history, earlier_s = saved.restore(weights, optimiser), saved.wall_s
    draw = Draw(rows, config)
    start = time.perf_counter() - earlier_s
    for done in range(history.steps + 1, config.steps + 1):
        by_layer = _fill_gradients(decoder, draw, done - 1, config, weights, objective, world)
        history.told.append(_update(optimiser, weights, config, done, by_layer))
        if habits.evaluate is not None and (done % habits.evaluate_every == 0 or done == config.steps):
            _evaluate(habits, as_forecast(weights, config.lead), history)
        if world.leads and habits.checkpoint and (done % habits.checkpoint_every == 0 or done == config.steps):
            spent_s = time.perf_counter() - start
            write_checkpoint(habits.checkpoint, Checkpoint.take(run, weights, optimiser, history, spent_s))
        if habits.on_step is not None:
            habits.on_step(history.told[-1])
    spent_s = time.perf_counter() - start
    return TrainResult(forecast=as_forecast(weights, config.lead), history=history, wall_s=spent_s)


def check_stages(config: TrainConfig, decoder: Decoder) -> None:
    """Raise ConfigError for a run in two stages on a model that has one: its tokens have no bias."""
    if config.select_blocks and not decoder.shape.token_bias:
        raise ConfigError(
            f"select_blocks={config.select_blocks} is of a NOSA model, whose other blocks go by a token bias, and "
            f"{decoder.shape.name!r} has none: take a NOSA model, or leave it out (and objective 'nosa')"
        )


def _evaluate(habits: Habits, forecast: ForecastWeights, history: History) -> None:
    assert habits.evaluate is not None
    found = habits.evaluate(forecast, history.steps)
    history.evaluations.append(found)
    if habits.on_best is not None and history.best(habits.best_by) is found:
        habits.on_best(forecast, found)


def _update(
    optimiser: torch.optim.Optimizer,
    weights: Sequence[torch.Tensor],
    config: TrainConfig,
    done: int,
    by_layer: tuple[float, ...],
) -> Step:
    """One step of AdamW on the gradients that are there."""
    lr = config.lr_at(done - 1)
    for group in optimiser.param_groups:
        group["lr"] = lr
    norm = float(torch.nn.utils.clip_grad_norm_(weights, config.clip or float("inf")))
    loss = sum(by_layer) / len(by_layer)
    check_step(done, loss, norm, config)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return Step(step=done, loss=loss, lr=lr, norm=norm, by_layer=by_layer)


def check_step(step: int, loss: float, norm: float, config: TrainConfig) -> None:
    """Stop a run that has diverged, before its weights are overwritten; raises ConfigError with its numbers."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise ConfigError(
            f"step {step}: loss={loss} and gradient={norm} must be finite, with lr={config.lr}, "
            f"weight_decay={config.weight_decay}, clip={config.clip}: the run has diverged; lower lr or weight_decay"
        )


def _fill_gradients(
    decoder: Decoder,
    draw: Draw,
    step: int,
    config: TrainConfig,
    weights: Sequence[torch.Tensor],
    objective: Objective,
    world: World,
) -> tuple[float, ...]:
    """Fill every weight's gradient with that of the mean loss over the step's rows; returns this by layer.

    All queries of a step weigh alike, whichever row and process they are in.
    """
    gradients = [torch.zeros_like(w) for w in weights]
    losses = weights[0].new_zeros(len(weights))
    asked = weights[0].new_zeros(1)

    def learn(lesson: LayerLesson) -> None:
        loss, gradient = layer_gradient(
            lesson, weights[lesson.layer], objective, chunk_bytes=config.chunk_mib * 2**20
        )
        losses[lesson.layer] += loss
        gradients[lesson.layer] += gradient

    for number in shared_out(config.batch, world.rank, world.size):
        row, positions_Q = draw(step * config.batch + number)
        asked += len(positions_Q)
        observe(
            decoder, row.ids.to(decoder.device), positions_Q.to(decoder.device), config.spec, learn,
            lengths=row.lengths, lead=config.lead, attend=_attend(decoder, config, weights, objective),
        )  # fmt: skip
    world.add([*gradients, losses, asked])
    scale = 1 / (float(asked) * decoder.shape.kv_heads)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.mul_(scale)
    return tuple(losses.mul_(scale).tolist())


def _attend(
    decoder: Decoder, config: TrainConfig, weights: Sequence[torch.Tensor], objective: Objective
) -> Attend | None:
    """Attention that the states of the next row follow; None for dense."""
    if config.states == DENSE:
        return None
    selection = Selection(
        decoder=decoder, spec=config.spec, first=config.first_position, chunk_bytes=config.chunk_mib * 2**20,
        select_blocks=config.select_blocks,
    )  # fmt: skip
    teacher = objective if config.states == TEACHER else None
    masters = [w.detach() for w in weights]
    return OwnStates(selection=selection, weights=masters, lead=config.lead, teacher=teacher).attend
