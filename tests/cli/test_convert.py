"""`sparda convert` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparda_core.cli.main import main
from sparda_core.models.forecast_weights import OWN_KEY, following_key, save_forecast
from sparda_core.models.tiny import TINY_SHAPE, random_forecast, random_weights
from tests.models.gguf_files import SMALL, write_directory

Captured = pytest.CaptureFixture[str]


def test_a_checkpoint_of_the_release_is_converted_and_told(tmp_path: Path, capsys: Captured) -> None:
    tensors = {name: torch.zeros(16, 32) for name in (OWN_KEY, *map(following_key, range(3)))}
    torch.save({"model_state_dict": tensors, "step": 7}, tmp_path / "ckpt.pt")
    source, out = str(tmp_path / "ckpt.pt"), str(tmp_path / "f.safetensors")
    assert main(["convert", source, out, "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out == f"{out}: 4 tensors, 2,048 values, bfloat16\n"
    assert main(["convert", source, out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["layers"], told["dtypes"], told["metadata"]["steps"]) == (3, ["float32"], 7)


def test_the_base_model_is_named_by_its_directory_and_zeros_are_told(tmp_path: Path, capsys: Captured) -> None:
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    save_forecast(tmp_path / "f.safetensors", random_forecast(SMALL, seed=0, dtype=torch.float32))
    words = ["convert", str(tmp_path / "f.safetensors"), str(tmp_path / "f.pt")]
    assert main([*words, "--model", str(tmp_path / "m")]) == 0
    assert "layer 1, the last, has zeros" in capsys.readouterr().out
    assert main([*words, "--shape", "smollm2-135m"]) == 2
    assert "must have 30 or 1 less" in capsys.readouterr().err


def test_a_base_model_is_converted_into_a_new_folder(tmp_path: Path, capsys: Captured) -> None:
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    words = ["convert", str(tmp_path / "m"), str(tmp_path / "out")]
    assert main([*words, "--shape", "smollm2-135m"]) == 2
    assert "leave them out for a base model" in capsys.readouterr().err
    assert main([*words, "--dtype", "float16"]) == 0
    assert "20 tensors of float16" in capsys.readouterr().out
    assert main(words) == 2
    assert "exists; name a folder that does not" in capsys.readouterr().err


def test_generate_takes_the_release_s_checkpoint_as_it_is(tmp_path: Path, capsys: Captured) -> None:
    tensors = {name: torch.zeros(16, 32) for name in (OWN_KEY, *map(following_key, range(2)))}
    torch.save({"model_state_dict": tensors}, tmp_path / "ckpt.pt")
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    assert TINY_SHAPE.hidden == SMALL.hidden
    words = ["generate", "x", "--model", str(tmp_path / "m"), "--forecast", str(tmp_path / "ckpt.pt")]
    assert main(words) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_what_is_read_is_not_written_over_and_a_model_needs_a_folder_s_name(tmp_path: Path, capsys: Captured) -> None:
    write_directory(tmp_path / "m", random_weights(SMALL, seed=0, dtype=torch.float32))
    save_forecast(tmp_path / "f.safetensors", random_forecast(SMALL, seed=0, dtype=torch.float32))
    same = str(tmp_path / "f.safetensors")
    assert main(["convert", same, same, "--dtype", "float16"]) == 2
    assert "is the file that is read; name another" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "m"), str(tmp_path / "m.pt")]) == 2
    assert "name a new folder" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists()
