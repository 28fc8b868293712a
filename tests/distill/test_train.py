"""The trainer learns, repeats itself and survives being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch

from sparda_core.distill.history import Step
from sparda_core.distill.lesson import LayerLesson, observe
from sparda_core.distill.rows import Corpus, Draw, Rows
from sparda_core.distill.train import Habits, initial_weights, train
from sparda_core.errors import ConfigError
from sparda_core.models.files import read_metadata
from sparda_core.models.forecast_weights import query_mean
from tests.distill.toy import SHAPE, SPEC, toy_config, toy_model, toy_stream
from tests.house.tree import ROOT


class KilledError(Exception):
    """Stands for a process that dies."""


def test_the_loss_falls_from_a_random_start_on_a_tiny_model() -> None:
    config = toy_config(steps=60, init="random")
    result = train(toy_model().decoder, toy_stream(), config)
    assert len(result.losses) == 60
    first, last = sum(result.losses[:5]) / 5, sum(result.losses[-5:]) / 5
    assert last < 0.9 * first


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    runs = [train(toy_model().decoder, toy_stream(), toy_config(seed=seed)) for seed in (1, 1, 2)]
    assert runs[0].losses == runs[1].losses
    assert torch.equal(runs[0].forecast.own, runs[1].forecast.own)
    assert not torch.equal(runs[0].forecast.own, runs[2].forecast.own)


@pytest.mark.parametrize("killed_at", [1, 4, 5, 11])
def test_a_killed_run_that_is_resumed_ends_exactly_as_an_uninterrupted_one(tmp_path: Path, killed_at: int) -> None:
    config, stream, path = toy_config(), toy_stream(), tmp_path / "run.checkpoint"
    whole = train(toy_model().decoder, stream, config)

    def kill(told: Step) -> None:
        if told.step == killed_at:
            raise KilledError

    with pytest.raises(KilledError):
        train(toy_model().decoder, stream, config, Habits(checkpoint=path, checkpoint_every=2, on_step=kill))
    steps: list[int] = []
    habits = Habits(checkpoint=path, checkpoint_every=2, resume=True, on_step=lambda told: steps.append(told.step))
    resumed = train(toy_model().decoder, stream, config, habits)
    assert steps[0] == killed_at // 2 * 2 + 1
    assert resumed.losses == whole.losses
    assert torch.equal(resumed.forecast.own, whole.forecast.own)
    for got, want in zip(resumed.forecast.following, whole.forecast.following, strict=True):
        assert torch.equal(got, want)
    assert [file.name for file in tmp_path.iterdir()] == ["run.checkpoint"]


def test_a_process_killed_outright_leaves_a_checkpoint_from_which_the_same_losses_follow(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    script = Path(__file__).parent / "killed_run.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, str(script), str(path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 7:
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    config = toy_config(steps=2000)
    stop = json.loads(read_metadata(path)["sparda"])["step"] + 6

    def cut(told: Step) -> None:
        if told.step == stop:
            raise KilledError

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs: list[list[Step]] = []
    for habits in (Habits(), Habits(checkpoint=path, checkpoint_every=1, resume=True)):
        told: list[Step] = []
        with pytest.raises(KilledError):
            train(toy_model().decoder, toy_stream(), config, attrs.evolve(habits, on_step=_also(told, cut)))
        runs.append(told)
    torch.set_num_threads(threads)
    assert len(runs[1]) == 6
    assert runs[0][-6:] == runs[1]


def _also(told: list[Step], cut: Callable[[Step], None]) -> Callable[[Step], None]:
    def both(step: Step) -> None:
        told.append(step)
        cut(step)

    return both


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    decoder = toy_model().decoder
    train(decoder, toy_stream(), toy_config(steps=2), Habits(checkpoint=path, base_model="toy"))
    again = Habits(checkpoint=path, resume=True, base_model="toy")
    for stream, changes, habits, said in (
        (toy_stream(), {"steps": 3, "lr": 0.1}, again, "another run: lr, steps differ"),
        (toy_stream(400), {}, again, "data_sha256"),
        (toy_stream(), {}, Habits(checkpoint=path, resume=True, base_model="other"), "base_model"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(decoder, stream, toy_config(**{"steps": 2, **changes}), habits)
    whole = path.read_bytes()
    for broken in (whole[:200], whole[:-1], b"", b"x" * 500):
        path.write_bytes(broken)
        with pytest.raises(ConfigError, match="cannot be read"):
            train(decoder, toy_stream(), toy_config(steps=2), again)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        train(decoder, toy_stream(), toy_config(steps=1), Habits(checkpoint=tmp_path / "file" / "x"))


def test_a_checkpoint_says_in_json_what_it_is_of(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    train(toy_model().decoder, toy_stream(), toy_config(steps=2), Habits(checkpoint=path, base_model="toy"))
    about = json.loads(read_metadata(path)["sparda"])
    assert (about["step"], about["base_model"], about["objective"]) == (2, "toy", "block")
    assert about["block_spec"]["block"] == SPEC.block
    assert about["data_sha256"] == Corpus.one(toy_stream()).sha256


def test_only_the_layer_that_is_forecast_learns_from_its_loss_and_the_model_stays_as_it_was() -> None:
    decoder = toy_model().decoder
    before = decoder.dense_forward(torch.arange(9)[None])
    config = toy_config(steps=1, lr=0.0)
    result = train(decoder, toy_stream(), config)
    for got, want in zip(
        (result.forecast.own, *result.forecast.following), initial_weights(decoder, config), strict=True
    ):
        assert torch.equal(got, want)
    assert torch.equal(decoder.dense_forward(torch.arange(9)[None]), before)


def test_the_query_mean_start_of_a_forecast_comes_from_the_layer_it_forecasts() -> None:
    decoder = toy_model().decoder
    weights = initial_weights(decoder, toy_config())
    assert len(weights) == SHAPE.layers
    for layer, weight in enumerate(weights):
        assert torch.equal(weight, query_mean(decoder.query_weight(layer), SHAPE))


def test_a_lesson_shows_the_layer_before_and_the_decoders_own_forecast_agrees_with_it() -> None:
    decoder = toy_model().decoder
    weights = initial_weights(decoder, toy_config(init="random"))
    result = train(decoder, toy_stream(), toy_config(steps=3, init="random"))
    with_it = decoder.with_forecast(result.forecast)
    ids_T, positions_Q = toy_stream(96), torch.arange(40, 96, 3)
    lessons: list[LayerLesson] = []
    observe(decoder, ids_T, positions_Q, SPEC, lessons.append)
    seen: dict[int, torch.Tensor] = {}
    from sparda_core.models.decoder import Projections

    def visit(layer: int, p: Projections) -> None:
        if p.forecast_own is not None:
            seen[0] = p.forecast_own[0, :, positions_Q]
        if p.forecast_next is not None:
            seen[layer + 1] = p.forecast_next[0, :, positions_Q]

    with_it.dense_forward(ids_T[None], visit=visit)
    trained = (result.forecast.own, *result.forecast.following)
    assert sorted(seen) == [lesson.layer for lesson in lessons] == list(range(SHAPE.layers))
    for lesson in lessons:
        torch.testing.assert_close(lesson.heads(trained[lesson.layer]), seen[lesson.layer])
        assert not torch.allclose(lesson.heads(weights[lesson.layer]), seen[lesson.layer])


def test_every_window_is_read_once_before_any_is_read_again() -> None:
    config = toy_config()
    draw = Draw(Rows(Corpus.one(torch.arange(500)), window=96, mode="packed", least=41), config)
    starts = [int(draw(step)[0].ids[0]) for step in range(10)]
    assert sorted(starts[:5]) == sorted(starts[5:]) == [0, 96, 192, 288, 384]
    for step in range(5):
        row, positions_Q = draw(step)
        assert (len(row.ids), row.lengths) == (96, (96,))
        assert positions_Q.tolist() == sorted(set(positions_Q.tolist()))
        assert (len(positions_Q), int(positions_Q.min()) >= 40, int(positions_Q.max()) < 96) == (24, True, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "steps=0"),
        ({"first_position": 20}, "first_position=20 must be >= 32"),
        ({"window": 40}, "window=40 must be > first_position=40"),
        ({"lr": float("nan")}, "lr=nan"),
    ],
)
def test_impossible_runs_are_refused(changes: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        toy_config(**changes)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"95 tokens.*needs >= 96"):
        train(toy_model().decoder, toy_stream(95), toy_config(documents="joined"))
    with pytest.raises(ConfigError, match=r"40 tokens.*needs >= 41"):
        train(toy_model().decoder, toy_stream(40), toy_config())


def test_the_learning_rate_warms_up_and_ends_at_its_floor() -> None:
    constant = toy_config(steps=100, warmup=10, lr=1.0, schedule="constant")
    assert [constant.lr_at(step) for step in (0, 9, 10, 99)] == pytest.approx([0.1, 1, 1, 1])
    config = toy_config(steps=100, warmup=10, lr=1.0)
    rates = [config.lr_at(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0) == rates[9]
    assert rates[100] == pytest.approx(config.lr_floor)
    assert rates[10:] == sorted(rates[10:], reverse=True)
