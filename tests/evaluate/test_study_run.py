"""A study on a tiny model: whole, interrupted and resumed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparda_core.distill.texts import Document
from sparda_core.errors import ConfigError, RecordingError
from sparda_core.evaluate.study.judge import judge_path
from sparda_core.evaluate.study.run import Study, identity, run_study
from sparda_core.evaluate.study.store import Rows, check_ours
from sparda_core.evaluate.study.windows import cut_windows
from tests.evaluate import study_world as world


def letters(text: str) -> list[int]:
    return [ord(letter) % world.SHAPE.vocab for letter in text]


class Letters:
    def encode(self, text: str) -> list[int]:
        return letters(text)


def study(**changes: object) -> Study:
    texts = ("".join(chr(97 + (i * i + at) % 26) for i in range(400)) for at in range(3))
    documents = [Document(name, text) for name, text in zip("xyz", texts, strict=True)]
    windows = cut_windows(documents, letters, tokens=world.TOKENS, count=2)
    filler = tuple(i * 7 % 61 for i in range(700))
    names = ("query", "oracle", "forecast:a.s0", "forecast:a.s1", "window")
    return Study(
        decoder=world.decoder(), methods=world.methods(*names), scorer=world.scorer(),
        config=world.config(**changes), windows=windows, encoder=Letters(), filler=filler,
    )  # fmt: skip


def rows_of(folder: Path, what: Study) -> Rows:
    return Rows(folder, identity(what, model="study", forecasts={}, extra={}))


def timeless(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "choice_s"} for row in rows]


def test_an_interrupted_study_goes_on_and_ends_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = run_study(study(), rows_of(tmp_path / "whole", study()))
    real, calls = judge_path, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(args[2])
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("sparda_core.evaluate.study.run.judge_path", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), rows_of(tmp_path / "part", study()))
    ticks: list[tuple[int, int]] = []
    resumed, _ = run_study(
        study(), rows_of(tmp_path / "part", study()), progress=lambda _what, done, total: ticks.append((done, total))
    )
    assert len(calls) == 5 + 1 + 15  # two windows of ten paths each; the sixth was lost and done again
    assert timeless(resumed) == timeless(whole)
    assert ticks[0] == (6, 22)
    assert ticks[-1] == (22, 22)
    run_study(study(), rows_of(tmp_path / "part", study()))
    assert len(calls) == 21


def test_shares_fill_one_folder_with_the_rows_of_a_whole_study(tmp_path: Path) -> None:
    small: dict[str, object] = {"samples": 2, "tasks": ("copy",), "task_tokens": 250}
    whole, prompts = run_study(study(**small), rows_of(tmp_path / "whole", study(**small)))
    for share in range(3):
        windows, tasks = run_study(study(**small), rows_of(tmp_path / "shared", study(**small)), share=(share, 3))
        assert len(windows) + len(tasks) == (2, 2, 0)[share]
    ticks: list[tuple[int, int]] = []
    rows = rows_of(tmp_path / "shared", study(**small))
    found, answers = run_study(study(**small), rows, progress=lambda _what, done, total: ticks.append((done, total)))
    assert timeless(found) == timeless(whole)
    assert answers == prompts


def test_a_row_says_what_the_methods_are_worth_against_each_other() -> None:
    from sparda_core.evaluate.study.judge import judge_choices

    what = study()
    _, row = judge_choices(what.decoder, world.ids(), what.methods, what.config, what.scorer)
    assert row["choice"]["query"]["recall_query"]["6"] == [1, 1, 1]
    assert row["choice"]["oracle"]["recall_oracle"]["9"] == [1, 1, 1]
    for layer in range(3):
        for name in ("query", "window", "forecast:a.s0"):
            mine, best = (row["choice"][n]["free_mass"]["6"][layer] for n in (name, "oracle"))
            assert 0 <= mine < best < 1 - row["forced_mass"][layer]
    assert set(row["misses"]) == {"query", "oracle", "forecast:a.s0", "forecast:a.s1", "window"}
    assert "score" not in row["misses"]["window"]["6"]
    assert row["misses"]["query"]["6"]["all"] == 6


def test_tasks_are_judged_by_the_answers_tokens_alone() -> None:
    what = study(samples=2, tasks=("copy",), task_tokens=256)
    _, tasks = run_study(what, _Memory())
    assert [(row["task"], row["sample"]) for row in tasks] == [("copy", 0), ("copy", 1)]
    for row in tasks:
        exact, accuracy, nll = row["dense"]
        assert exact in (0, 1)
        assert 0 <= accuracy <= 1
        assert nll > 0
        assert row["methods"]["window"]["6"][2] != nll


class _Memory(Rows):
    def __init__(self) -> None:
        self.kept: dict[str, object] = {}

    def get(self, name: str) -> dict[str, object]:
        return {}

    def put(self, name: str, row: object) -> None:
        self.kept[name] = row


def test_a_folder_with_another_study_is_refused_naming_what_differs(tmp_path: Path) -> None:
    rows_of(tmp_path, study())
    with pytest.raises(ConfigError, match="config differ"):
        rows_of(tmp_path, study(seed=3))
    (tmp_path / "rows" / "x.0.json").write_text("{")
    with pytest.raises(RecordingError, match=r"x\.0\.json"):
        rows_of(tmp_path, study()).get("x.0")


def test_a_folder_that_another_process_is_just_making_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / ".study.json.x.part").write_text("{")
    check_ours(tmp_path)
    (tmp_path / "rows" / "a.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds 'rows' and no study\.json"):
        check_ours(tmp_path)
    writer = threading.Timer(0.1, lambda: (tmp_path / "study.json").write_text("{}"))
    writer.start()
    check_ours(tmp_path)
    writer.join()


def test_what_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="task_tokens=300 must be <= context=256"):
        study(samples=1, tasks=("copy",), task_tokens=300)
    study(samples=1, tasks=(), task_tokens=300)  # without tasks nothing is that long
    with pytest.raises(ConfigError, match="exactly window=140"):
        study(window=140)


def test_windows_are_the_first_of_every_document_then_the_second_and_do_not_overlap() -> None:
    documents = [Document("long", "a" * 1000), Document("short", "b" * 250), Document("tiny", "c" * 10)]
    windows = cut_windows(documents, letters, tokens=100, count=5)
    assert [(w.name, w.offset) for w in windows] == [
        ("long.0", 0), ("short.0", 0), ("long.1", 333), ("short.1", 125), ("long.2", 666),
    ]  # fmt: skip
    assert json.dumps(windows[0].sha256)
    with pytest.raises(ConfigError, match="hold 5 windows"):
        cut_windows(documents, letters, tokens=100, count=6)


def test_only_texts_that_are_needed_are_encoded() -> None:
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text[0])
        return letters(text)

    cut_windows([Document("a", "a" * 200), Document("b", "b" * 200)], encode, tokens=100, count=1)
    assert seen == ["a"]


def test_a_model_with_a_token_bias_is_judged_like_any_other(tmp_path: Path) -> None:
    def first(name: str, what: Study) -> dict[str, Any]:
        what = attrs.evolve(what, windows=what.windows[:1])
        return run_study(what, rows_of(tmp_path / name, what))[0][0]

    plain, biased = first("plain", study()), first("biased", attrs.evolve(study(), decoder=world.decoder(biased=True)))
    assert plain["choice"]["oracle"]["free_mass"] != biased["choice"]["oracle"]["free_mass"]
    assert all(recall == 1 for recall in biased["choice"]["oracle"]["recall_oracle"]["6"])
    assert all(biased["path"]["query"][budget]["kl"] > 0 for budget in ("6", "9"))
