"""`sparda train` from options to files, on a tiny GGUF."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
from pathlib import Path

import attrs
import pytest
import torch

from sparda_core.distill.command import add_arguments, command_line, run
from sparda_core.distill.config import CPU_RECIPE
from sparda_core.distill.options import FIELDS, config_of, settle_measured
from sparda_core.distill.report import machine
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.locks import locked
from sparda_core.models.forecast_weights import load_forecast
from sparda_core.models.gguf import read_gguf
from sparda_core.models.load import load_model
from tests.models.gguf_files import SMALL, write_directory, write_gguf


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARDA_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf")
    (tmp_path / "text.txt").write_text(" ".join(f"line {i} of the text" for i in range(200)))
    return tmp_path


def parsed(folder: Path, *extra: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {
        "--out": folder / "out.safetensors", "--model": folder / "small.gguf", "--text": folder / "text.txt",
        "--steps": 3, "--window": 512, "--first-position": 384, "--positions": 16, "--recall-window": 0,
        "--evaluate-windows": 0, "--held-out": 0,
    }  # fmt: skip
    return parser.parse_args([*(str(part) for pair in options.items() for part in pair), *extra])


def test_training_writes_a_forecast_that_loads_and_says_how_it_was_made(folder: Path) -> None:
    assert run(parsed(folder, "--init", "random", "--seed", "7")) == 0
    forecast = load_forecast(folder / "out.safetensors", SMALL)
    assert forecast.metadata["base_model"] == "small"
    assert (forecast.metadata["documents_read"], forecast.metadata["document_names"]) == (1, ["text.txt"])
    assert len(forecast.metadata["data_sha256"]) == 64
    assert (forecast.metadata["steps"], forecast.metadata["seed"]) == (3, 7)
    assert forecast.metadata["device"] == "cpu"
    assert str(folder) not in json.dumps(dict(forecast.metadata))
    model = load_model(folder / "small.gguf", forecast=folder / "out.safetensors")
    assert model.decoder.has_forecast


def test_a_longer_lead_on_its_own_states_is_written_as_such_and_can_be_used(folder: Path) -> None:
    small = "--steps", "1", "--positions", "4"
    assert run(parsed(folder, "--lead", "1", "--on-policy", *small)) == 0
    forecast = load_forecast(folder / "out.safetensors", SMALL)
    assert (forecast.lead, forecast.metadata["lead"], forecast.metadata["states"]) == (1, 1, "forecast")
    assert "--lead 1 --states forecast" in forecast.metadata["command"]
    with pytest.raises(ConfigError, match=f"lead={SMALL.layers} must be < layers={SMALL.layers}"):
        run(parsed(folder, "--lead", str(SMALL.layers), *small))


def test_the_recorded_command_makes_the_same_run_again(folder: Path) -> None:
    args = parsed(folder, "--seed", "3", "--lr", "0.001", "--device", "cuda:1", "--dtype", "float32")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    again = parser.parse_args(shlex.split(command_line(args))[2:])
    assert config_of(again) == config_of(args)
    same = ("dtype", "device", "held_out", "pattern", "column", "split", "other_blocks")
    cut = {"sink", "local", "block", "budget", "entries"}  # told as they were settled
    assert {name: vars(again)[name] for name in same} == {name: vars(args)[name] for name in same}
    running = {
        "out", "model", "text", "dataset", "mds", "source_tokenizer", "cache", "threads", "shard_model", "checkpoint",
        "checkpoint_every", "resume", "evaluate_every", "evaluate_windows", "best_by", "tensorboard", "results",
        "recall_window", "plan", "shape", "json", "cpu_recipe",
    }  # fmt: skip
    assert vars(args).keys() == {*running, *same, *cut, *FIELDS}
    assert again.entries == "32/16"


def test_the_machine_of_a_report_names_the_gpu_only_where_one_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gpu" not in machine("cpu")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"name of {device}")
    assert machine("cuda:1")["gpu"] == "name of cuda:1"


def test_recall_on_held_out_text_is_written_with_its_conditions(folder: Path) -> None:
    assert run(parsed(folder, "--recall-window", "1024", "--results", str(folder / "recall.json"))) == 0
    report = json.loads((folder / "recall.json").read_text())
    assert "typing.py" in report["conditions"]["windows"]
    assert set(report["recall"]["forecast"]) == {"8", "12", "16", "24"}
    assert {"forecast", "query-mean", "random", "infinigen-softmax", "infinigen-entry"} <= set(report["recall"])
    assert len(report["losses_nats"]) == 3
    assert not list(folder.glob(".*.part"))


def test_bad_options_are_refused_before_anything_is_written(folder: Path) -> None:
    cases = [
        (("--out", str(folder / "out.bin")), "must end in .safetensors"),
        (("--window", "2048"), "must be <= context=1024"),
        (("--first-position", "100"), "first_position=100"),
        (("--text", str(folder / "absent.txt")), "cannot be read"),
    ]
    for extra, said in cases:
        with pytest.raises(ConfigError, match=said):
            run(parsed(folder, *extra))
    write_directory(folder / "plain", dict(read_gguf(folder / "small.gguf").tensors))
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        run(parsed(folder, "--model", str(folder / "plain")))
    (folder / "file").write_text("in the way")
    with pytest.raises(OSError, match="Not a directory"):
        run(parsed(folder, "--out", str(folder / "file" / "out.safetensors")))
    assert not list(folder.glob("out.*"))


def test_what_would_fail_or_be_lost_after_hours_is_refused_at_once(folder: Path) -> None:
    out = folder / "out.safetensors"
    cases = [
        (("--lr", "1e300"), "lr=1e\\+300 must be .* <= 1e\\+30"),
        (("--checkpoint-every", "0"), "checkpoint_every=0 must be >= 1"),
        (("--evaluate-every", "-3"), "evaluate_every=-3 must be >= 1"),
        (("--teacher", "1000/1"), "teacher='1000/1' must have a window <= 64"),
        (("--teacher", "8/3"), "teacher='8/3' must have"),
        (("--recall-window", "400"), "recall_window=400 must be >= 768"),
        (("--results", str(folder / "recall.json")), "--results tells the recall table"),
        (("--json",), "--json tells the recall table"),
        (("--shape", "smollm2-135m"), "add --plan, or give --model"),
        (("--checkpoint", str(out)), "is a file that --out writes itself"),
        (("--results", str(folder / "out.curve.csv"), "--recall-window", "1024"), "is a file that --out writes itself"),
        (("--column", "text"), "--column text is of --dataset or --mds, and none is given"),
        (("--split", "test"), "--split test is of --dataset, and none is given"),
        (("--source-tokenizer", "t.json"), "--source-tokenizer t.json is of --dataset or --mds"),
        (("--text", str(folder), "--pattern", "**x"), "pattern='\\*\\*x' is none"),
        (("--text", str(folder), "--pattern", "/texts/*"), "pattern='/texts/\\*' is none"),
    ]
    for extra, said in cases:
        with pytest.raises(ConfigError, match=said):
            run(parsed(folder, *extra))
    nowhere = parsed(folder)
    nowhere.out = None
    with pytest.raises(ConfigError, match="--out is missing"):
        run(nowhere)
    with pytest.raises(OSError, match="is no folder"):
        run(parsed(folder, "--cache", str(folder / "text.txt")))
    assert not list(folder.glob("out.*"))


def test_the_recipe_of_a_cpu_sets_sizes_that_options_override(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    model = ["--model", str(folder / "small.gguf")]
    plain, recipe = (parser.parse_args([*model, *words]) for words in ([], ["--cpu-recipe", "--steps", "7"]))
    for args in (plain, recipe):
        settle_measured(args)
    usual = config_of(plain)
    assert (usual.teacher, usual.init, usual.objective, usual.lr) == ("fine", "query-mean", "block", 3e-3)
    assert config_of(recipe) == attrs.evolve(usual, **{**CPU_RECIPE, "steps": 7})
    assert (plain.evaluate_every, plain.recall_window) == (50, 8192)
    assert (recipe.evaluate_every, recipe.recall_window) == (20, 4096)
    with pytest.raises(ConfigError, match="--cpu-recipe and --objective reference both set"):
        run(parsed(folder, "--cpu-recipe", "--objective", "reference"))


def test_a_missing_tensorboard_is_told_before_a_text_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("sparda_core.distill.command.load_model", lambda *_args, **_options: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=r"sparda\[tensorboard\]"):
        run(parsed(folder, "--tensorboard", str(folder / "board")))
    assert not (folder / "board").exists()


def test_two_runs_into_one_file_are_kept_apart(folder: Path) -> None:
    with locked(folder / "out.safetensors"), pytest.raises(ConfigError, match="being written by another run"):
        run(parsed(folder))
    kept = folder / "kept"
    with locked(kept), pytest.raises(ConfigError, match=r"checkpoint=.* another run.* name another --checkpoint"):
        run(parsed(folder, "--checkpoint", str(kept)))
    assert run(parsed(folder, "--steps", "1")) == 0
    assert not list(folder.glob("*.lock"))


def test_results_do_not_take_the_place_of_the_checkpoint(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is the place of the checkpoint; name another file"):
        run(parsed(folder, "--recall-window", "512", "--results", str(folder / "out.safetensors.checkpoint")))


def test_a_run_that_diverges_stops_and_writes_no_weights(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"step \d: loss=.*the run has diverged; lower lr"):
        run(parsed(folder, "--weight-decay", "1e30", "--warmup", "0", "--steps", "6"))
    assert not out_files(folder)


def out_files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("out.*")]


def write_texts(folder: Path, count: int = 12) -> Path:
    """Documents of about 1,100 tokens (a byte each)."""
    texts = folder / "texts"
    texts.mkdir()
    for i in range(count):
        (texts / f"{i}.txt").write_text(f"document {i}: " + " ".join(f"line {j} of {i * j}" for j in range(120)))
    return texts


def test_a_run_keeps_its_best_forecast_its_curves_and_a_checkpoint_to_go_on_from(folder: Path) -> None:
    texts = write_texts(folder)
    options = ("--text", str(texts), "--held-out", "0.4", "--evaluate-windows", "2", "--evaluate-every", "2")
    assert run(parsed(folder, *options, "--checkpoint-every", "1")) == 0
    made = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"out.safetensors", "out.best.safetensors", "out.curve.csv", "out.safetensors.checkpoint"} <= made
    rows = list(csv.DictReader((folder / "out.curve.csv").read_text().splitlines()))
    assert [row["recall_oracle"] != "" for row in rows] == [False, True, True]
    best = load_forecast(folder / "out.best.safetensors", SMALL)
    step = max((float(row["recall_oracle"]), -int(row["step"])) for row in rows if row["recall_oracle"])
    assert best.metadata["held_out_recall"]["oracle"] == pytest.approx(step[0])
    assert best.metadata["steps"] == best.metadata["held_out_recall"]["step"] == -step[1]
    last = load_forecast(folder / "out.safetensors", SMALL)
    assert 0 < last.metadata["documents_read"] < 12
    assert run(parsed(folder, *options, "--checkpoint-every", "1", "--resume")) == 0  # nothing is left to be done
    again = load_forecast(folder / "out.safetensors", SMALL)
    assert again.metadata == last.metadata
    assert all(torch.equal(a, b) for a, b in zip(again.by_target, last.by_target, strict=True))


def test_text_of_which_nothing_can_be_held_out_is_validated_on_pythons_own_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parsed(folder, "--evaluate-windows", "1", "--steps", "1")) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "no held-out document of >= 512 tokens" in said
    assert "best on held-out text" in said
    assert said.index("step 0: recall") < said.index("step 1: recall"), "where it starts is told, too"


def test_the_recall_table_is_one_json_document_on_standard_output(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parsed(folder, "--recall-window", "1024", "--json", "--cache", str(folder / "kept"))) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 <= told["recall"]["forecast"]["16"] <= 1
    assert told["training"]["objective"] == "block"
    assert list((folder / "kept").glob("*.json"))


def test_the_published_objective_sets_its_own_numbers_and_yields_to_given_ones(folder: Path) -> None:
    config = config_of(parsed(folder, "--objective", "reference", "--lr", "0.1"))
    # --steps, --window, --first-position and --positions are given, too
    assert (config.lr, config.batch, config.clip, config.steps) == (0.1, 32, 0.5, 3)
    words = ("--objective", "reference", "--steps", "1", "--batch", "2", "--positions", "512", "--first-position", "0")
    assert run(parsed(folder, *words)) == 0
    assert load_forecast(folder / "out.safetensors", SMALL).metadata["states"] == "teacher"


def test_options_that_contradict_each_other_or_their_data_are_refused(folder: Path) -> None:
    cases = [
        (("--dataset", "a@0.5", "b"), "cannot be read|needs the extra"),
        (("--mds", "a@0"), "must be a number > 0"),
        (("--held-out", "1"), "held_out=1.0 must be >= 0 and < 1"),
        (("--teacher", "5/5"), "divides block=64"),
        (("--evaluate-windows", "-1"), "evaluate_windows=-1 must be >= 0"),
        (("--entries", "32"), "WINDOW/STRIDE in tokens"),
        (("--mds", "a", "--source-tokenizer", str(folder / "no.json")), "tokenizer='.*no.json' cannot be read"),
        (("--shard-model",), "needs several processes"),
        (("--text", str(folder), "--pattern", "*.rst"), "holds no file"),
    ]
    for extra, said in cases:
        with pytest.raises(ConfigError, match=said):
            run(parsed(folder, *extra))
    assert not list(folder.glob("out.*"))
