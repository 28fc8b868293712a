"""Every objective equals a loop over numbers, and its gradient the slope of that loop."""

from __future__ import annotations

import pytest
import torch

from sparda_core.distill.config import TrainConfig
from sparda_core.distill.learn import layer_gradient
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.objectives import OBJECTIVES, divergence, make_objective
from sparda_core.distill.teachers import Grid
from sparda_core.distill.train import initial_weights, train
from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.shapes import BlockSpec
from tests.distill.loops import clean_loss, reference_loss
from tests.distill.toy import SPEC, toy_config, toy_model, toy_stream

TIGHT = BlockSpec(block=8, window=4, stride=2, sink=1, local=1, budget=5)
GRIDS = {"fine": (2, 1), "coarse": (4, 2), "4/1": (4, 1), "1/1": (1, 1)}
POSITIONS = torch.tensor([1, 4, 17, 33, 40, 55, 62, 63])
MUCH = 2**40


def lesson_of(spec: BlockSpec, positions: torch.Tensor, tokens: int = 64) -> LayerLesson:
    found: list[LayerLesson] = []
    observe(toy_model().decoder, toy_stream(tokens), positions, spec, found.append)
    return found[1]


def loop(objective: str, lesson: LayerLesson, weight: torch.Tensor, grid: tuple[int, int]) -> float:
    heads = lesson.heads(weight).tolist()
    if objective == "reference":
        return reference_loss(lesson, heads, *grid)
    return clean_loss(objective, lesson, heads, *grid)


def weight_of(seed: int = 0) -> torch.Tensor:
    return 3 * initial_weights(toy_model().decoder, toy_config(init="random", seed=seed))[1]


@pytest.mark.parametrize("teacher", GRIDS)
@pytest.mark.parametrize("objective", [*OBJECTIVES, "reference"])
def test_an_objective_equals_a_loop_over_numbers(objective: str, teacher: str) -> None:
    positions = POSITIONS if objective == "reference" else POSITIONS[3:]
    lesson = lesson_of(TIGHT, positions)
    config = toy_config(spec=TIGHT, objective=objective, teacher=teacher)
    loss, _ = layer_gradient(lesson, weight_of(), make_objective(config, torch.float64), chunk_bytes=MUCH)
    want = loop(objective, lesson, weight_of(), GRIDS[teacher])
    assert want > 0.1
    assert float(loss) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(("objective", "teacher"), [(name, "fine") for name in (*OBJECTIVES, "reference")])
def test_the_gradient_is_the_slope_of_that_loop(objective: str, teacher: str) -> None:
    lesson, weight = lesson_of(TIGHT, POSITIONS[-4:]), weight_of()
    config = toy_config(spec=TIGHT, objective=objective, teacher=teacher)
    _, gradient = layer_gradient(lesson, weight, make_objective(config, torch.float64), chunk_bytes=MUCH)
    source = torch.Generator().manual_seed(1)
    for _ in range(3):
        way = torch.randn(weight.shape, dtype=weight.dtype, generator=source)
        way /= way.norm()
        ahead, behind = (loop(objective, lesson, weight + s * 1e-5 * way, GRIDS[teacher]) for s in (1, -1))
        assert float((gradient * way).sum()) == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("objective", [*OBJECTIVES, "reference"])
def test_loss_and_gradient_do_not_depend_on_how_many_queries_are_asked_at_once(objective: str) -> None:
    lesson, weight = lesson_of(SPEC, torch.arange(40, 96), tokens=96), weight_of()
    config = toy_config(objective=objective, teacher="fine")
    runs = [
        layer_gradient(lesson, weight, make_objective(config, torch.float64), chunk_bytes=size)
        for size in (MUCH, 40_000, 1)
    ]
    for loss, gradient in runs[1:]:
        torch.testing.assert_close(loss, runs[0][0], rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, runs[0][1], rtol=1e-10, atol=1e-14)


def test_a_student_equal_to_the_teacher_has_no_loss_and_no_other_has_less() -> None:
    counted = torch.tensor([[True, True, False, True, True], [False] * 5, [False, False, True, False, False]])
    target = torch.rand(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(divergence(target, target.log() + 7.0, counted)) == pytest.approx(0, abs=1e-14)
    for seed in range(5):
        other = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert float(divergence(target, other, counted)) > 0.01


def test_what_is_not_counted_touches_neither_loss_nor_gradient() -> None:
    source = torch.Generator().manual_seed(0)
    counted = torch.rand(4, 9, generator=source) > 0.5
    counted[1] = False
    score = torch.randn(2, 4, 9, dtype=torch.float64, generator=source, requires_grad=True)
    target = torch.rand(2, 4, 9, dtype=torch.float64, generator=source)
    loss = divergence(target, score, counted)
    (slope,) = torch.autograd.grad(loss, score)
    assert torch.isfinite(slope).all()
    assert torch.equal(slope != 0, (counted & (counted.sum(-1, keepdim=True) > 1)).expand_as(slope))
    other = score.detach().masked_fill(~counted, 1e6)
    torch.testing.assert_close(divergence(target.masked_fill(~counted, 1e6), other, counted), loss.detach())


def test_the_clean_rest_bucket_has_a_gradient_where_the_published_one_is_clamped() -> None:
    """A student that is wholly wrong: its probabilities lie below 1e-8 where the teacher's mass is."""
    lesson, weight = lesson_of(SPEC, torch.arange(80, 96), tokens=96), 400 * weight_of(3)
    slopes = {}
    for name in ("top", "reference"):
        objective = make_objective(toy_config(objective=name, teacher="fine"), torch.float64)
        slopes[name] = float(layer_gradient(lesson, weight, objective, chunk_bytes=MUCH)[1].norm())
    assert slopes["top"] > 3 * slopes["reference"]


def test_the_published_loss_rounds_to_the_models_dtype_from_the_softmax_on() -> None:
    lesson = lesson_of(SPEC, torch.arange(40, 96), tokens=96)
    config = toy_config(objective="reference", teacher="fine")
    exact, coarse = (
        layer_gradient(lesson, weight_of(), make_objective(config, dtype), chunk_bytes=MUCH)
        for dtype in (torch.float64, torch.bfloat16)
    )
    assert 1e-6 < abs(float(exact[0] - coarse[0])) / float(exact[0]) < 0.05
    assert float(torch.cosine_similarity(exact[1].flatten(), coarse[1].flatten(), dim=0)) > 0.95


@pytest.mark.parametrize("objective", [*OBJECTIVES, "reference"])
def test_every_objective_learns_from_either_teacher(objective: str) -> None:
    for teacher in ("fine", "coarse"):
        config = toy_config(steps=40, init="random", objective=objective, teacher=teacher, lr=0.03)
        losses = train(toy_model().decoder, toy_stream(), config).losses
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_the_published_run_has_the_published_numbers_and_asks_every_position() -> None:
    config = TrainConfig.reference(window=4096)
    assert (config.lr, config.clip, config.weight_decay, config.eps) == (5e-4, 0.5, 0.01, 1e-6)
    assert (config.steps, config.batch, config.init, config.teacher) == (2000, 32, "random", "fine")
    assert (config.positions, config.first_position) == (4096, 0)
    assert {config.lr_at(step) for step in (0, 1, 1999)} == {5e-4}
    warm = TrainConfig.reference(window=4096, warmup=1000)
    assert [warm.lr_at(step) for step in (0, 199, 200)] == pytest.approx([5e-4 / 200, 5e-4, 5e-4])


def test_unknown_objectives_and_grids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'block'"):
        make_objective(toy_config(objective="blocks"), torch.float32)
    cases = (("3/2", "multiple"), ("6/3", "divides block=8"), ("2/0", "WINDOW/STRIDE"), ("finest", "fine or"))
    for text, said in cases:
        with pytest.raises(ConfigError, match=said):
            Grid.parse(text, SPEC)
    with pytest.raises(ConfigError, match="stride=4 must divide"):
        make_objective(toy_config(objective="reference", teacher="4/4"), torch.float32)
    with pytest.raises(ConfigError, match="stride=4 must divide"):
        train(toy_model().decoder, toy_stream(), toy_config(objective="all", teacher="4/4"))
