"""What a run told becomes a table, a figure and a log, and finds the best of its evaluations."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from sparda_core.distill.curves import Board, smoothed, write_csv, write_figure
from sparda_core.distill.history import Evaluation, History, Step
from sparda_core.errors import ConfigError


def history() -> History:
    told = [Step(step=n, loss=1 / n, lr=0.1 * n, norm=2.0, by_layer=(1 / n, 3 / n)) for n in (1, 2, 3)]
    found = [Evaluation(1, 0.5, 0.9), Evaluation(2, 0.7, 0.8), Evaluation(3, 0.7, math.nan)]
    return History(told=told, evaluations=found)


def test_a_history_survives_json_to_the_last_bit() -> None:
    again = History.from_json(json.loads(json.dumps(history().as_json())))
    assert again.told == history().told
    assert again.evaluations[:2] == history().evaluations[:2]
    assert again.steps == 3


def test_the_best_evaluation_is_the_earliest_of_the_highest_by_the_reference_that_was_asked_for() -> None:
    best = history().best("oracle")
    assert best is not None
    assert best.step == 2
    other = history().best("query")
    assert other is not None
    assert other.step == 1
    assert History().best("oracle") is None


def test_a_table_has_a_row_a_step_and_recall_where_it_was_measured(tmp_path: Path) -> None:
    some = history()
    del some.evaluations[0]
    write_csv(tmp_path / "c.csv", some)
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert [row["recall_oracle"] for row in rows] == ["", "0.7", "0.7"]
    assert [float(row["loss_nats"]) for row in rows] == [1 / n for n in (1, 2, 3)]
    assert float(rows[1]["loss_layer_1"]) == 1.5


def test_a_figure_is_a_picture_with_and_without_recall(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_figure(tmp_path / "a.png", history(), "toy")
    write_figure(tmp_path / "b.png", History(told=history().told), "toy")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert smoothed([1.0, 2.0, 3.0, 6.0], width=2) == [1.0, 1.5, 2.5, 4.5]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_log_for_tensorboard_holds_losses_and_recall(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Board(tmp_path / "log") as board:
        for told in history().told:
            board.step(told)
        board.evaluation(history().evaluations[0])
    log = EventAccumulator(str(tmp_path / "log"))
    log.Reload()
    assert [event.value for event in log.Scalars("loss")] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [event.step for event in log.Scalars("recall/oracle")] == [1]


def test_without_a_folder_nothing_is_logged_and_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Board(None) as board:
        board.step(history().told[0])
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"sparda\[tensorboard\]"):
        Board(tmp_path)
