"""Forecasts that look several layers ahead: what they are trained from, for, and how their recall is told."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.recall import RecallConfig, measure_recall
from sparda_core.distill.train import as_forecast, initial_weights, train
from sparda_core.errors import ConfigError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder, Projections
from sparda_core.models.tiny import random_weights
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_stream

DEEP = attrs.evolve(SHAPE, layers=4)
POSITIONS = torch.arange(40, 96, 5)


def decoder() -> Decoder:
    weights = random_weights(DEEP, seed=3, dtype=torch.float64)
    return Decoder(DecoderConfig(shape=DEEP), {name: 6 * w if "q_proj" in name else w for name, w in weights.items()})


@pytest.mark.parametrize("lead", [1, 2, 3])
def test_a_lesson_holds_the_input_of_the_layer_so_far_before_and_the_first_layers_their_own(lead: int) -> None:
    lessons: list[LayerLesson] = []
    inputs: list[torch.Tensor] = []

    def see(_layer: int, p: Projections) -> None:
        inputs.append(p.x_norm[0, POSITIONS])

    observe(decoder(), toy_stream(96), POSITIONS, SPEC, lessons.append, lead=lead)
    decoder().dense_forward(toy_stream(96)[None], visit=see)
    for layer, lesson in enumerate(lessons):
        want = inputs[layer - lead if layer >= lead else layer]
        torch.testing.assert_close(lesson.x_before, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", [2, 3])
def test_what_is_trained_is_what_the_model_forecasts_once_it_has_the_weights(lead: int) -> None:
    result = train(decoder(), toy_stream(), toy_config(steps=2, lead=lead, init="random"))
    assert result.forecast.lead == lead
    running = decoder().with_forecast(result.forecast)
    forecasts: dict[int, torch.Tensor] = {}
    lessons: list[LayerLesson] = []

    def see(layer: int, p: Projections) -> None:
        if p.forecast_own is not None:
            forecasts[layer] = p.forecast_own[0, :, POSITIONS]
        if p.forecast_next is not None:
            forecasts[layer + lead] = p.forecast_next[0, :, POSITIONS]

    running.dense_forward(toy_stream(96)[None], visit=see)
    observe(running, toy_stream(96), POSITIONS, SPEC, lessons.append, lead=lead)
    assert sorted(forecasts) == list(range(DEEP.layers))
    for lesson, weight in zip(lessons, result.forecast.by_target, strict=True):
        torch.testing.assert_close(lesson.heads(weight), forecasts[lesson.layer], rtol=1e-9, atol=1e-9)


def test_training_two_layers_ahead_learns_and_recall_counts_the_layers_that_forecast() -> None:
    config = RecallConfig(spec=SPEC, budgets=(6,), window=96, first=48, every=4)
    windows, found = [toy_stream()[:96]], []
    for steps, lr in ((1, 0.0), (20, 0.05)):
        result = train(decoder(), toy_stream(), toy_config(steps=steps, lr=lr, init="random", lead=2))
        table = measure_recall(decoder(), windows, result.forecast, config)
        layers = table.by_layer["forecast"][6]
        assert table.mean("forecast", 6) == pytest.approx(sum(layers[2:]) / 2)
        found.append(table.mean("forecast", 6))
    assert found[1] > found[0] + 0.02


def test_the_untrained_start_of_a_longer_lead_is_the_mean_of_the_target_layers_queries() -> None:
    forecast = as_forecast(initial_weights(decoder(), toy_config(lead=2)), lead=2)
    config = RecallConfig(spec=SPEC, budgets=(5,), window=96, first=48, every=3)
    table = measure_recall(decoder(), [toy_stream(96)], forecast, config)
    assert table.by_layer["forecast"] == table.by_layer["query-mean"]
    one = measure_recall(decoder(), [toy_stream(96)], None, config)
    assert table.by_layer["infinigen-softmax"] != one.by_layer["infinigen-softmax"]
    assert table.by_layer["oracle"] == one.by_layer["oracle"]


def test_a_lead_as_deep_as_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="lead=4 must be < layers=4"):
        train(decoder(), toy_stream(), toy_config(lead=4))
    with pytest.raises(ConfigError, match="lead=0 must be a finite number >= 1"):
        toy_config(lead=0)
