"""Training for a NOSA model: the loss of its first stage's blocks, and states that follow both stages."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from sparda_core.compose import compose
from sparda_core.distill.checkpoint import identity
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.learn import layer_gradient
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.objectives import make_objective
from sparda_core.distill.own_states import OwnStates
from sparda_core.distill.recall import methods
from sparda_core.distill.reference import ReferenceLoss
from sparda_core.distill.selected import Selection
from sparda_core.distill.train import initial_weights, train
from sparda_core.errors import ConfigError
from sparda_core.layer_view import LayerView
from sparda_core.models.tiny import random_forecast
from sparda_core.shapes import BlockSpec
from tests.distill.loops import clean_loss, reference_loss
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_model, toy_stream

#: Nine blocks attended, of which 1 + 1 + 3 by the score: two free ones beside the three forced.
TWO_STAGES = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=9)
SELECT, FIRST_STAGE = 3, 5
PROMPT, TOKENS = 44, 112
MUCH = 2**40


def lesson_of(positions: torch.Tensor) -> LayerLesson:
    found: list[LayerLesson] = []
    observe(toy_model(biased=True).decoder, toy_stream(96), positions, TWO_STAGES, found.append)
    return found[1]


def weight_of() -> torch.Tensor:
    return 3 * initial_weights(toy_model().decoder, toy_config(init="random"))[1]


def nosa_config(**changes: Any) -> TrainConfig:
    usual = {"spec": TWO_STAGES, "objective": "nosa", "select_blocks": SELECT, "teacher": "fine"}
    return toy_config(**(usual | changes))


@pytest.mark.parametrize(("teacher", "grid"), [("fine", (2, 1)), ("coarse", (4, 2))])
@pytest.mark.parametrize("objective", ["nosa", "top"])
def test_the_blocks_of_the_first_stage_are_taught_and_no_others(
    objective: str, teacher: str, grid: tuple[int, int]
) -> None:
    lesson = lesson_of(torch.tensor([41, 60, 77, 90, 95]))
    config = nosa_config(objective=objective, teacher=teacher)
    loss, gradient = layer_gradient(lesson, weight_of(), make_objective(config, torch.float64), chunk_bytes=MUCH)
    heads = lesson.heads(weight_of()).tolist()

    def loop(budget: int) -> float:
        cut = attrs.evolve(lesson, spec=TWO_STAGES.with_budget(budget))
        return reference_loss(cut, heads, *grid) if objective == "nosa" else clean_loss("top", cut, heads, *grid)

    assert float(loss) == pytest.approx(loop(FIRST_STAGE), rel=1e-9)
    assert abs(loop(FIRST_STAGE) - loop(TWO_STAGES.budget)) > 1e-3, "one stage would pass this test"
    assert float(gradient.norm()) > 0


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    lesson, weight = lesson_of(torch.tensor([60, 77, 95])), weight_of()
    objective = make_objective(nosa_config(), torch.float64)
    _, gradient = layer_gradient(lesson, weight, objective, chunk_bytes=MUCH)
    way = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(1))
    way /= way.norm()
    ahead, behind = (
        float(layer_gradient(lesson, weight + s * 1e-5 * way, objective, chunk_bytes=MUCH)[0]) for s in (1, -1)
    )
    assert float((gradient * way).sum()) == pytest.approx((ahead - behind) / 2e-5, rel=1e-4)


def test_the_published_run_teaches_41_of_96_blocks_and_compares_165_outcomes() -> None:
    spec = BlockSpec(sink=1, local=16, budget=96)
    config = TrainConfig.reference(spec=spec, objective="nosa", window=32768)
    assert (config.select_blocks, config.states, config.lr, config.batch) == (24, "teacher", 5e-4, 32)
    assert (config.taught.budget, config.taught.free, config.positions) == (41, 23, 32768)
    objective = make_objective(config, torch.bfloat16)
    assert isinstance(objective, ReferenceLoss)
    assert objective.spec.entries_per_block * objective.spec.budget + 1 == 165
    assert TrainConfig.reference(spec=spec).taught.budget == 96


@pytest.mark.parametrize(("states", "selector"), [("teacher", "nosa"), ("forecast", "nosa-forecast")])
def test_states_in_two_stages_are_those_of_a_session_that_decodes_so(states: str, selector: str) -> None:
    """The coarse teacher scores as the query-driven first stage does."""
    model, spec = toy_model(biased=True), TWO_STAGES
    forecast = random_forecast(SHAPE, seed=9, dtype=torch.float64)
    queries: dict[tuple[int, int], torch.Tensor] = {}

    def keep(view: LayerView) -> None:
        assert view.query is not None
        queries[view.layer, int(view.positions[0, 0])] = view.query[0, :, 0]

    ids = toy_stream(TOKENS).tolist()
    decoder = model.decoder.with_forecast(forecast)
    options = {"select_blocks": SELECT}
    pair = compose(decoder, selector, "resident", spec=spec, selector_options=options, page_blocks=2)
    with pair.open_cpu() as session:
        row = session.add()
        session.prefill(row, ids[:PROMPT])
        session.on_layer = keep
        for token in ids[PROMPT:]:
            session.decode({row: token})
    same = []
    for select_blocks in (SELECT, 0):
        objective = make_objective(toy_config(spec=spec), torch.float64)
        own = OwnStates(
            selection=Selection(decoder=model.decoder, spec=spec, first=PROMPT, select_blocks=select_blocks),
            weights=forecast.by_target, lead=1, teacher=objective if states == "teacher" else None,
        )  # fmt: skip
        lessons: list[LayerLesson] = []
        observe(
            model.decoder, toy_stream(TOKENS), torch.arange(PROMPT, TOKENS), spec, lessons.append, attend=own.attend
        )
        want = [torch.stack([queries[x.layer, at] for at in range(PROMPT, TOKENS)], dim=1) for x in lessons]
        same.append([torch.allclose(x.q, w) for x, w in zip(lessons[1:], want[1:], strict=True)])
    assert same == [[True, True], [False, False]]


def test_a_run_learns_its_first_stage() -> None:
    config = nosa_config(steps=40, init="random", lr=0.03, states="teacher")
    losses = train(toy_model(biased=True).decoder, toy_stream(), config).losses
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_recall_against_the_oracle_counts_the_bias() -> None:
    plain, lesson = toy_model(), lesson_of(torch.tensor([77, 95]))
    assert lesson.bias is not None
    mass = methods(plain.decoder, None, seed=0)["oracle"](lesson)
    logit = lesson.q[2:, 1] @ lesson.k[1].T / SHAPE.head_dim**0.5 + lesson.bias[1]
    logit[:, int(lesson.positions[1]) + 1 :] = -torch.inf
    want = logit.softmax(-1).sum(0).view(-1, 8).sum(-1)
    torch.testing.assert_close(mass[1, 1], want)


def test_two_stages_are_refused_where_there_is_one_and_an_old_run_in_one_stage_is_still_the_same() -> None:
    with pytest.raises(ConfigError, match="select_blocks=3 is of a NOSA model"):
        train(toy_model().decoder, toy_stream(), nosa_config(steps=1))
    with pytest.raises(ConfigError, match="select_blocks=8 must be <= budget - sink - local = 7"):
        nosa_config(select_blocks=8)
    with pytest.raises(ConfigError, match="'nosa' needs select_blocks >= 1"):
        toy_config(objective="nosa")
    assert "select_blocks" not in identity(toy_config(spec=SPEC), "0", "toy")
    assert identity(nosa_config(), "0", "toy")["select_blocks"] == 3
