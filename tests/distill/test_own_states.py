"""Hidden states that follow a Forecast's selections are those that a session meets which decodes with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.objectives import make_objective
from sparda_core.distill.own_states import OwnStates
from sparda_core.distill.selected import Selection
from sparda_core.distill.train import Habits, initial_weights, train
from sparda_core.errors import ConfigError
from sparda_core.layer_view import LayerView
from sparda_core.models.decoder import Decoder
from sparda_core.models.forecast_weights import ForecastWeights
from sparda_core.models.tiny import random_forecast
from sparda_core.shapes import BlockSpec
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_model, toy_stream

PROMPT, TOKENS = 44, 96


def trained(lead: int = 1) -> ForecastWeights:
    return random_forecast(SHAPE, seed=9, dtype=torch.float64, lead=lead)


def states(
    decoder: Decoder, forecast: ForecastWeights, *, spec: BlockSpec = SPEC, lengths: Sequence[int] | None = None,
    **more: Any,
) -> list[LayerLesson]:  # fmt: skip
    """Lessons of every layer at every position of the stream from the prompt on."""
    selection = Selection(decoder=decoder, spec=spec, first=PROMPT, **more)
    own = OwnStates(selection=selection, weights=forecast.by_target, lead=forecast.lead)
    lessons: list[LayerLesson] = []
    ids = toy_stream(sum(lengths) if lengths else TOKENS)
    positions = torch.arange(PROMPT, len(ids))
    observe(
        decoder, ids, positions, spec, lessons.append, lengths=lengths, lead=forecast.lead, attend=own.attend
    )  # fmt: skip
    return lessons


@pytest.mark.parametrize(("lead", "runtime"), [(1, "offload-prefetch"), (2, "resident")])
def test_states_are_those_of_a_session_that_read_the_prompt_and_decodes_the_rest(lead: int, runtime: str) -> None:
    model, forecast = toy_model(), trained(lead)
    decoder = model.decoder.with_forecast(forecast)
    queries: dict[tuple[int, int], torch.Tensor] = {}

    def keep(view: LayerView) -> None:
        assert view.query is not None
        queries[view.layer, int(view.positions[0, 0])] = view.query[0, :, 0]

    ids = toy_stream(TOKENS).tolist()
    with compose(decoder, "forecast", runtime, spec=SPEC, page_blocks=2).open_cpu() as session:
        row = session.add()
        session.prefill(row, ids[:PROMPT])
        session.on_layer = keep
        for token in ids[PROMPT:]:
            session.decode({row: token})
    dense: list[LayerLesson] = []
    observe(model.decoder, toy_stream(TOKENS), torch.arange(PROMPT, TOKENS), SPEC, dense.append)
    for lesson, other in zip(states(model.decoder, forecast), dense, strict=True):
        want = torch.stack([queries[lesson.layer, at] for at in range(PROMPT, TOKENS)], dim=1)
        torch.testing.assert_close(lesson.q, want, rtol=1e-9, atol=1e-9)
        if lesson.layer:
            assert (lesson.q - other.q).abs().max() > 1e-3, "dense states would pass this test"


def test_however_many_queries_go_at_once_the_states_are_the_same() -> None:
    decoder = toy_model().decoder
    for whole, parts in zip(states(decoder, trained()), states(decoder, trained(), chunk_bytes=1), strict=True):
        torch.testing.assert_close(parts.q, whole.q, rtol=1e-12, atol=1e-12)


def test_documents_of_one_row_see_nothing_of_each_other() -> None:
    decoder = toy_model().decoder
    together = states(decoder, trained(), lengths=(TOKENS, 70))
    first, second = together[::2], together[1::2]
    for lesson, alone in zip(first, states(decoder, trained()), strict=True):
        torch.testing.assert_close(lesson.k, alone.k, rtol=1e-12, atol=1e-12)
    assert second[0].k.shape[1] == 70
    assert int(second[0].positions[0]) == 0


def test_a_budget_for_everything_gives_the_states_of_dense_attention() -> None:
    decoder, wide = toy_model().decoder, SPEC.with_budget(TOKENS // SPEC.block)
    dense: list[LayerLesson] = []
    observe(decoder, toy_stream(TOKENS), torch.arange(PROMPT, TOKENS), wide, dense.append)
    for own, other in zip(states(decoder, trained(), spec=wide), dense, strict=True):
        torch.testing.assert_close(own.k, other.k, rtol=1e-10, atol=1e-10)


def test_training_on_its_own_states_learns_and_its_first_loss_is_of_those_states() -> None:
    config = toy_config(steps=30, init="random", states="forecast")
    own = train(toy_model().decoder, toy_stream(), config)
    dense = train(toy_model().decoder, toy_stream(), attrs.evolve(config, steps=1, states="dense"))
    assert own.losses[0] != dense.losses[0]
    assert sum(own.losses[-5:]) < 0.95 * sum(own.losses[:5])
    weights = initial_weights(toy_model().decoder, config)
    assert any(not torch.equal(a, b) for a, b in zip(own.forecast.by_target, weights, strict=True))


def test_a_killed_run_on_its_own_states_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    """States depend on the weights of their step, so a resumed run must have had the very same ones."""
    config, stream, path = toy_config(states="forecast", steps=6), toy_stream(), tmp_path / "run.checkpoint"
    whole = train(toy_model().decoder, stream, config)

    def kill(told: Any) -> None:
        if told.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy_model().decoder, stream, config, Habits(checkpoint=path, checkpoint_every=3, on_step=kill))
    resumed = train(toy_model().decoder, stream, config, Habits(checkpoint=path, resume=True))
    assert resumed.losses == whole.losses
    other = attrs.evolve(config, states="dense")
    with pytest.raises(ConfigError, match="states differ"):
        train(toy_model().decoder, stream, other, Habits(checkpoint=path, resume=True))


def test_states_that_follow_the_teacher_are_those_of_a_session_that_decodes_with_it() -> None:
    """The coarse teacher selects as the query-driven selector does."""
    model, objective = toy_model(), make_objective(toy_config(), torch.float64)
    queries: dict[tuple[int, int], torch.Tensor] = {}

    def keep(view: LayerView) -> None:
        assert view.query is not None
        queries[view.layer, int(view.positions[0, 0])] = view.query[0, :, 0]

    ids = toy_stream(TOKENS).tolist()
    opened: Any = compose(model.decoder, "query", "resident", spec=SPEC, page_blocks=2).open()
    with opened as session:
        row = session.add()
        session.prefill(row, ids[:PROMPT])
        session.on_layer = keep
        for token in ids[PROMPT:]:
            session.decode({row: token})
    same = {}
    for states in ("dense", "forecast", "teacher"):
        own = OwnStates(
            selection=Selection(decoder=model.decoder, spec=SPEC, first=PROMPT), weights=trained().by_target, lead=1,
            teacher=objective if states == "teacher" else None,
        )  # fmt: skip
        lessons: list[LayerLesson] = []
        attend = None if states == "dense" else own.attend
        observe(model.decoder, toy_stream(TOKENS), torch.arange(PROMPT, TOKENS), SPEC, lessons.append, attend=attend)
        same[states] = [
            torch.allclose(lesson.q, torch.stack([queries[lesson.layer, at] for at in range(PROMPT, TOKENS)], dim=1))
            for lesson in lessons[1:]
        ]
    assert same == {"dense": [False] * 2, "forecast": [False] * 2, "teacher": [True] * 2}


def test_the_published_loss_is_of_states_that_follow_its_own_target() -> None:
    """From a document's first token on, by the target's own pool: another selection gives another first loss."""
    losses = {}
    for states in ("teacher", "dense", "forecast"):
        config = TrainConfig.reference(spec=SPEC, window=96, steps=1, batch=2, states=states)
        losses[states] = train(toy_model().decoder, toy_stream(), config).losses[0]
    assert TrainConfig.reference().states == "teacher"
    assert len(set(losses.values())) == 3
