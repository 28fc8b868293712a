"""`sparda evaluate` and `sparda texts` from outside, on a tiny model."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import attrs
import pytest
import torch

from sparda_core.cli.main import main
from sparda_core.models.tiny import random_weights
from tests.cli.conftest import Refusal
from tests.cli.files import Files
from tests.models import test_nosa as nosa_files

SIZES = (
    "--block", "16", "--entry-window", "16", "--entry-stride", "8", "--local", "1", "--window", "400", "--first", "370",
    "--budgets", "6", "8", "--path-budgets", "6", "--slot-budgets", "6", "--task-budgets", "6", "--samples", "1",
    "--tasks", "copy", "--task-tokens", "300", "--windows", "2", "--threads", "1",
)  # fmt: skip


def words(tiny: Files, out: Path, *more: str) -> list[str]:
    forecasts = [f"--forecast=f.s{seed}={tiny.forecast}" for seed in (0, 1)]
    given = ["--model", str(tiny.model), "--text", str(tiny.text), "--out", str(out)]
    return ["evaluate", *given, *forecasts, *SIZES, *more]


def test_a_study_leaves_tables_figures_and_rows_that_the_same_command_finds_again(
    tiny: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(tiny, tmp_path, "--methods", "query", "oracle", "forecast", "query@8/8")) == 0
    shown = capsys.readouterr().out
    for part in ("Recall of the oracle's", "forecast:f (2 seeds)", "chance", "Tasks of 300", "lru x4", "1 of them"):
        assert part in shown
    assert {path.name for path in tmp_path.iterdir()} == {
        "study.json", "rows", "results.json", "results.csv", "quality.png", "layers.png"
    }  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["study"]["config"]["window"] == 400
    assert results["provenance"]["machine"]["cpu"]
    assert {m["method"]: m["grid"] for m in results["methods"]} == {
        "query": "16/8", "oracle": None, "forecast:f.s0": "16/8", "forecast:f.s1": "16/8", "query@8/8": "8/8"
    }  # fmt: skip
    with (tmp_path / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert {line["metric"] for line in table} >= {"recall_query", "kl", "misses", "task_exact", "churn", "total_mass"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    more = ("--methods", "query", "oracle", "forecast", "query@8/8", "--json", "--no-plot")
    assert main(words(tiny, tmp_path, *more)) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()} == before
    again = json.loads(capsys.readouterr().out)
    assert again["figures"] == results["figures"]
    assert main(["evaluate", "--show", str(tmp_path), "--no-plot"]) == 0
    assert capsys.readouterr().out == shown


def test_shares_are_measured_apart_and_collected_by_the_command_without_one(
    tiny: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    asked = words(tiny, tmp_path, "--methods", "query", "--json", "--no-plot")
    for share in ("1/2", "2/2"):
        assert main([*asked, "--share", share]) == 0
        assert capsys.readouterr().out == ""
    assert not (tmp_path / "results.json").exists()
    rows = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    assert len(rows) == 3
    assert main(asked) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()} == rows
    capsys.readouterr()
    assert "1 <= I <= N" in refusal(*asked, "--share", "3/2")


def test_what_cannot_be_measured_is_refused_before_the_model_is_loaded(
    tiny: Files, tmp_path: Path, refusal: Refusal
) -> None:
    assert "did you mean 'query'?" in refusal(*words(tiny, tmp_path / "a", "--methods", "qury"))
    assert "forced=3" in refusal(*words(tiny, tmp_path / "a", "--budgets", "3"))
    assert "one of them" in refusal(*words(tiny, tmp_path / "a", "--texts", str(tmp_path)))
    assert "label comes twice" in refusal(*words(tiny, tmp_path / "a", "--forecast", f"f.s0={tiny.forecast}"))
    assert "did you mean 'f.s1'?" in refusal(*words(tiny, tmp_path / "a", "--methods", "forecast:f.s9"))
    assert not (tmp_path / "a").exists()


def test_another_study_in_the_same_folder_is_refused(tiny: Files, tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "study.json").write_text('{"model": "other"}')
    assert "holds another study: config," in refusal(*words(tiny, tmp_path, "--methods", "query"))


def test_packages_are_listed_and_a_folder_that_is_none_of_ours_is_refused(
    tmp_path: Path, refusal: Refusal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["texts", "packages"]) == 0
    assert "r-cran-janeaustenr" in capsys.readouterr().out
    assert main(["texts", "packages", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 7
    assert "holds no manifest.json" in refusal("texts", "show", "--out", tmp_path)
    assert "is no folder" in refusal("texts", "fetch", "--out", tmp_path, "--archives", tmp_path / "none")


def test_a_folder_with_files_that_are_no_studys_is_refused_and_left_alone(
    tiny: Files, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    assert "holds 'letter.txt' and no study.json" in refusal(*words(tiny, tmp_path, "--methods", "query"))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    other = tmp_path / "rows-alone"
    (other / "rows").mkdir(parents=True)
    (other / "rows" / "x.json").write_text("{}")
    assert "it is no study's" in refusal(*words(tiny, other, "--methods", "query"))


def test_methods_that_need_a_token_bias_are_refused_where_the_model_has_none(
    tiny: Files, tmp_path: Path, refusal: Refusal
) -> None:
    wrong = refusal(*words(tiny, tmp_path / "a", "--methods", "query", "nosa", "nosa-forecast"))
    assert "['nosa', 'nosa-forecast:f.s0', 'nosa-forecast:f.s1'] choose by a token bias" in wrong
    assert "must be >= 9" in refusal(*words(tiny, tmp_path / "a", "--methods", "nosa", "--select-blocks", "7"))


def test_a_nosa_checkpoint_is_judged_on_its_own_blocks_with_its_second_stage(
    tiny: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = attrs.evolve(nosa_files.SHAPE, vocab=256, context=2048)
    weights = random_weights(shape, seed=1, dtype=torch.float32)
    folder = nosa_files.write(tmp_path / "nosa", weights, vocab_size=256, max_position_embeddings=2048)
    shutil.copy(tiny.model / "tokenizer.json", folder)
    sizes = ("--window", "300", "--first", "270", "--windows", "1", "--samples", "0", "--threads", "1")
    few = ("--budgets", "7", "9", "--path-budgets", "9", "--slot-budgets", "9")
    given = ("--model", str(folder), "--text", str(tiny.text), "--out", str(tmp_path / "out"), "--no-plot", "--json")
    assert main(["evaluate", *given, *sizes, *few]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [m["method"] for m in told["methods"]][-3:] == ["random", "window", "nosa"]
    spec = {name: told["study"]["config"]["spec"][name] for name in ("block", "window", "stride", "sink", "local")}
    assert spec == {"block": 8, "window": 4, "stride": 2, "sink": 1, "local": 2}
    assert {f["method"] for f in told["figures"] if f["metric"] == "kl"} >= {"nosa", "infinigen-released"}
