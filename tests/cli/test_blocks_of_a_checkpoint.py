"""Commands that run a model take the blocks that its checkpoint names, where no option says otherwise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest
import torch

from sparda_core.cli import evaluate, generate
from sparda_core.cli.main import main
from sparda_core.cli.running import combine
from sparda_core.distill import options as train_options
from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.forecast_weights import load_forecast
from sparda_core.models.load import load_model
from sparda_core.models.safetensors_dir import read_constants
from sparda_core.shapes import BlockSpec
from tests.cli.conftest import Refusal
from tests.cli.test_generate_families import write
from tests.models.test_nosa import SPARSE, weights_of
from tests.models.test_nosa import write as write_nosa

OWN = BlockSpec(block=16, window=8, stride=4, sink=1, local=2, budget=6)  # as write() has it for a MiniCPM
COMMANDS = {
    "compare": ("sparda_core.bench.compare.run_compare", ()),
    "calibrate": ("sparda_core.bench.calibrate_cpu.calibrate_cpu", ("--contexts", "64", "--selectors", "query")),
    "timeline": (
        "sparda_core.bench.calibrate_cpu.calibrate_cpu", ("--selector", "query", "--runtime", "offload-sync")
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_blocks_are_the_checkpoints_own_and_give_way_to_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    does, words = COMMANDS[command]
    seen: list[BlockSpec] = []

    def stopped(*args: Any, **options: Any) -> NoReturn:
        seen.extend(arg.spec for arg in args if hasattr(arg, "spec"))
        raise ConfigError("seen enough")

    monkeypatch.setattr(does, stopped)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over it. " * 6)
    for family, options in (("minicpm", ()), ("minicpm", ("--budget", "5")), ("qwen3", ())):
        folder = tmp_path / family
        if not folder.exists():
            write(folder, family)
        assert main([command, "--model", str(folder), "--text", "text.txt", *words, *options]) != 0
    assert seen == [OWN, attrs.evolve(OWN, budget=5), BlockSpec()]


def train_words(folder: Path, *more: str) -> list[str]:
    small = ("--steps", "1", "--window", "200", "--first-position", "120", "--positions", "8", "--recall-window", "0")
    text = folder.parent / "text.txt"
    text.write_text("The quick brown fox jumps over it. " * 60)
    out = str(folder.parent / "f.safetensors")
    told = ("--text", str(text), "--held-out", "0", "--evaluate-windows", "0", "--out", out)
    return ["train", "--model", str(folder), *small, *told, *more]


def test_training_takes_the_blocks_of_the_checkpoint_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "minicpm")
    assert main(train_words(folder)) == 0
    metadata = load_forecast(tmp_path / "f.safetensors", read_constants(folder).shape).metadata
    assert BlockSpec(**metadata["block_spec"]) == OWN
    assert "--sink 1 --local 2" in metadata["command"].replace("--block 16 ", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--block", "32"), "--block 32 contradicts the checkpoint, whose sparse_config has block=16"),
        (("--local", "3"), "--local 3 contradicts the checkpoint, whose sparse_config has local=2"),
        (("--entries", "16/4"), "--entries with window 16 contradicts the checkpoint, whose sparse_config has window="),
    ],
)
def test_options_that_contradict_the_checkpoint_are_refused_unless_it_is_meant(
    tmp_path: Path, refusal: Refusal, words: tuple[str, str], told: str
) -> None:
    folder = write(tmp_path / "m", "minicpm")
    said = refusal(*train_words(folder, *words))
    assert told in said
    assert "leave out, or add --other-blocks" in said
    assert told in refusal("adapt", "--out", tmp_path / "a", "--model", folder, *words, "--steps", "1")
    common = ("--model", folder, "--max-new-tokens", "2", "--selector", "query", "--runtime", "resident")
    if words[0] != "--entries":
        assert told in refusal("generate", "hello", *common, *words)
    parser = argparse.ArgumentParser()
    train_options.add_arguments(parser)
    meant = parser.parse_args(train_words(folder, *words, "--other-blocks", "--first-position", "180")[1:])
    assert train_options.config_of(meant).spec != OWN
    assert "--other-blocks" in train_options.command_line(meant)
    if words[0] == "--local":
        assert main(["generate", "hello", *map(str, common), *words, "--other-blocks"]) == 0


def test_a_study_takes_the_blocks_of_the_checkpoint_and_as_many_free_ones_as_usual(
    tmp_path: Path, refusal: Refusal
) -> None:
    folder = write(tmp_path / "m", "minicpm")
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    config = evaluate.config_of(parser.parse_args(["--model", str(folder)]))
    assert attrs.evolve(config.spec, budget=6) == OWN
    assert config.budgets == (7, 11, 15, 23, 31)  # one forced block less than usual
    told = "--entry-window 16 contradicts the checkpoint, whose sparse_config has window=8"
    assert told in refusal("evaluate", "--model", folder, "--out", tmp_path / "e", "--entry-window", "16")
    assert evaluate.config_of(parser.parse_args([])).budgets == (8, 12, 16, 24, 32)


def test_a_nosa_checkpoint_says_how_many_blocks_go_by_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def stopped(_model: Any, selector: str, _runtime: str, **options: Any) -> NoReturn:
        seen.append((selector, options["selector_options"]))
        raise ConfigError("seen enough")

    monkeypatch.setattr("sparda_core.compose.compose", stopped)
    folder = write_nosa(tmp_path / "m", weights_of(dtype=torch.float32))
    words = ["--model", str(folder), "--runtime", "resident"]
    for selector, more in (("nosa", ()), ("nosa", ("--selector-option", "select_blocks=2")), ("query", ())):
        parser = argparse.ArgumentParser()
        generate.add_arguments(parser)
        args = parser.parse_args(["hello", *words, "--selector", selector, *more])
        with pytest.raises(ConfigError, match="seen enough"):
            combine(args, load_model(folder))
    assert seen == [("nosa", {"select_blocks": 3}), ("nosa", {"select_blocks": 2}), ("query", {})]
    with pytest.raises(WeightsError, match="select_blocks=9 must be between 1 and 4"):
        load_model(write_nosa(tmp_path / "n", weights_of(), sparse_config={**SPARSE, "select_blocks": 9}))


def test_training_a_nosa_checkpoint_takes_its_two_stages(tmp_path: Path) -> None:
    folder = write_nosa(tmp_path / "m", weights_of(dtype=torch.float32))
    parser = argparse.ArgumentParser()
    train_options.add_arguments(parser)
    config = train_options.config_of(parser.parse_args(["--model", str(folder), "--objective", "nosa"]))
    assert (config.select_blocks, config.taught.budget, config.spec.budget) == (3, 6, 7)
    plain = train_options.config_of(parser.parse_args(["--model", str(folder), "--first-position", "100"]))
    assert (plain.select_blocks, plain.taught) == (0, plain.spec)
