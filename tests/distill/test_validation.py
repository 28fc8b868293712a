"""Recall while training is that of the final table, where both look at the same thing."""

from __future__ import annotations

import pytest
import torch

from sparda_core.distill.recall import RecallConfig, measure_recall
from sparda_core.distill.train import as_forecast, initial_weights
from sparda_core.distill.validation import Validation
from sparda_core.errors import ConfigError
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream


def validation(length: int, budget: int = 6) -> Validation:
    windows = [toy_stream()[at : at + length] for at in (0, 100)]
    return Validation(decoder=toy_model().decoder, windows=windows, spec=SPEC.with_budget(budget), asked=8)


def test_recall_against_query_driven_is_that_of_the_recall_table() -> None:
    validate, decoder = validation(96, budget=5), toy_model().decoder
    forecast = as_forecast(initial_weights(decoder, toy_config(init="random")))
    found = validate(forecast, 7)
    config = RecallConfig(spec=SPEC, budgets=(validate.budget,), window=96, first=48, every=6)
    table = measure_recall(decoder, list(validate.windows), forecast, config)
    assert found.step == 7
    assert found.query == pytest.approx(table.mean("forecast", validate.budget))
    assert 0 < found.oracle < 1
    assert found.oracle != found.query


def test_a_forecast_that_sees_the_layers_own_query_recalls_more_than_a_random_one() -> None:
    validate = validation(96, budget=5)
    scores = [
        validate(as_forecast(initial_weights(validate.decoder, toy_config(init=init))), 1).query
        for init in ("random", "query-mean")
    ]
    assert scores[1] > scores[0]


def test_short_windows_are_looked_at_with_a_budget_that_leaves_half_of_the_blocks() -> None:
    assert [validation(length).free for length in (96, 64, 40)] == [2, 1, 1]
    assert validation(128).free == SPEC.free
    assert validation(96).budget == SPEC.forced + 2
    with pytest.raises(ConfigError, match="window of 32 tokens must be longer than 32"):
        validation(32)
    with pytest.raises(ConfigError, match="no held-out document"):
        Validation(decoder=toy_model().decoder, windows=[], spec=SPEC)


def test_the_budget_for_everything_recalls_everything() -> None:
    validate = Validation(decoder=toy_model().decoder, windows=[toy_stream(48)], spec=SPEC, asked=1)
    forecast = as_forecast(initial_weights(validate.decoder, toy_config()))
    assert validate.free == 1
    assert 0 <= validate(forecast, 1).query <= 1
    assert torch.isfinite(torch.tensor(validate(forecast, 1).oracle))
