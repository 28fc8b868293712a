"""Recall is counted right, and the methods are what their names say."""

from __future__ import annotations

import attrs
import pytest
import torch

from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.recall import RecallConfig, measure_recall, methods, recall_of, top_free
from sparda_core.distill.train import as_forecast, train
from sparda_core.errors import ConfigError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.tiny import random_weights
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_model, toy_stream

CONFIG = RecallConfig(spec=SPEC, budgets=(5, 6), window=96, first=48, every=3)


def test_top_free_takes_the_best_free_blocks_and_breaks_ties_towards_the_lower_id() -> None:
    score = torch.tensor([[[9.0, 1.0, 2.0, 2.0, 2.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]])
    free = torch.tensor([[False, True, True, True, True, False], [False, True, False, False, False, False]])
    chosen = top_free(score, free, 2)
    assert chosen[0].nonzero().tolist() == [[0, 2], [0, 3], [1, 1]]


def test_recall_is_the_share_of_wanted_blocks_that_were_chosen() -> None:
    wanted = torch.tensor([[[1, 1, 0, 0], [0, 1, 1, 0]]], dtype=torch.bool)
    chosen = torch.tensor([[[1, 0, 1, 0], [0, 1, 1, 0]]], dtype=torch.bool)
    assert recall_of(chosen, wanted) == pytest.approx(0.75)
    assert recall_of(wanted, wanted) == 1.0


def lessons_of_one_window() -> list[LayerLesson]:
    lessons: list[LayerLesson] = []
    observe(toy_model().decoder, toy_stream(96), CONFIG.positions(), SPEC, lessons.append)
    return lessons


def test_the_untrained_forecast_orders_blocks_as_infinigen_on_entries_does() -> None:
    table = methods(toy_model().decoder, None, seed=0)
    for lesson in lessons_of_one_window():
        got, want = table["query-mean"](lesson), table["infinigen-entry"](lesson)
        scale = SHAPE.group * SHAPE.head_dim**0.5
        torch.testing.assert_close(got[:, lesson.free] * scale, want[:, lesson.free])


def test_oracle_mass_and_token_scores_equal_loops_over_tokens() -> None:
    decoder = toy_model().decoder
    table = methods(decoder, None, seed=0)
    lesson = lessons_of_one_window()[1]
    mass, token = table["oracle"](lesson), table["infinigen-token"](lesson)
    proxy = lesson.heads(decoder.query_weight(1))
    for at in (0, 7, 15):
        i = int(lesson.positions[at])
        for g in range(SHAPE.kv_heads):
            share = torch.zeros(96, dtype=torch.float64)
            summed = torch.full((96,), -torch.inf, dtype=torch.float64)
            summed[: i + 1] = 0
            for h in range(SHAPE.group * g, SHAPE.group * (g + 1)):
                logit = lesson.k[g, : i + 1] @ lesson.q[h, at] / SHAPE.head_dim**0.5
                share[: i + 1] += logit.softmax(-1)
                summed[: i + 1] += lesson.k[g, : i + 1] @ proxy[h, at]
            for b in range(1, 12):
                assert float(mass[g, at, b]) == pytest.approx(float(share[8 * b : 8 * b + 8].sum()))
                assert float(token[g, at, b]) == pytest.approx(float(summed[8 * b - 1 : 8 * b + 8].max()))


def test_the_true_query_in_place_of_the_proxy_recalls_everything() -> None:
    """Layer 0 has no layer before it: its proxy is its own query, so softmax on entries is the teacher."""
    table = measure_recall(toy_model().decoder, [toy_stream(96)], None, CONFIG)
    assert table.by_layer["infinigen-softmax"][5][0] == pytest.approx(1.0)
    assert table.by_layer["infinigen-softmax"][5][1] < 1.0


def test_the_proxy_of_a_model_with_biases_and_norms_of_heads_is_its_own_query() -> None:
    config = DecoderConfig(shape=attrs.evolve(SHAPE, qkv_bias=True, qk_norm=True))
    weights = random_weights(config.shape, seed=3, dtype=torch.float64, config=config)
    table = measure_recall(Decoder(config, weights), [toy_stream(96)], None, CONFIG)
    assert table.by_layer["infinigen-softmax"][5][0] == pytest.approx(1.0)


def test_training_raises_recall_above_random_and_above_its_own_start() -> None:
    decoder, windows = toy_model().decoder, [toy_stream()[:96], toy_stream()[96:192]]
    recall, noise = [], [0.0, 0.0]
    for steps, lr in ((1, 0.0), (80, 0.02)):
        config = toy_config(steps=steps, lr=lr, init="random")
        table = measure_recall(decoder, windows, train(decoder, toy_stream(), config).forecast, CONFIG)
        recall.append([table.mean("forecast", budget) for budget in CONFIG.budgets])
        noise = [table.mean("random", budget) for budget in CONFIG.budgets]
    before, after = recall
    for i in range(len(CONFIG.budgets)):
        assert after[i] > before[i] + 0.02
        assert after[i] > noise[i] + 0.02


def test_mean_leaves_out_layer_0_unless_asked() -> None:
    table = measure_recall(toy_model().decoder, [toy_stream(96)], None, CONFIG)
    layers = table.by_layer["window"][6]
    assert table.mean("window", 6) == pytest.approx(sum(layers[1:]) / 2)
    assert table.mean("window", 6, first_layer=0) == pytest.approx(sum(layers) / 3)


def test_the_untrained_start_written_as_a_forecast_scores_the_same() -> None:
    decoder = toy_model().decoder
    from sparda_core.distill.train import initial_weights

    forecast = as_forecast(initial_weights(decoder, toy_config()))
    table = measure_recall(decoder, [toy_stream(96)], forecast, CONFIG)
    assert table.by_layer["forecast"] == table.by_layer["query-mean"]


def test_impossible_measurements_are_refused() -> None:
    with pytest.raises(ConfigError, match="first=96"):
        RecallConfig(spec=SPEC, window=96, first=96)
    with pytest.raises(ConfigError, match="budget=3 must be > forced=3"):
        RecallConfig(spec=SPEC, budgets=(3,), window=96, first=48)
    with pytest.raises(ConfigError, match="each must have"):
        measure_recall(toy_model().decoder, [toy_stream(95)], None, CONFIG)
