"""The command line over spoilt files: one line that says what is wrong, exit code 2, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparda_core.cli.main import BAD_INPUT, main
from tests.cases.readers import DOCUMENTS

#: Documents of no kind, and of another.
TEXTS = ("", "null", "[" * 100_000, '{"rows": [5], "figures": 5, "cells": 7}', "x = 0x" + "f" * 6000)

Command = Callable[[Path, Path], list[str]]
COMMANDS: dict[str, Command] = {
    "gpu profile": lambda file, out: ["predict", "--profile", str(file)],
    "locality": lambda file, out: ["predict", "--locality", str(file)],
    "decode rows": lambda file, out: ["bench", "decode", "--show", str(file)],
    "study report": lambda file, out: ["evaluate", "--show", str(file.parent)],
    "texts": lambda file, out: ["texts", "show", "--out", str(file.parent)],
    "model settings": lambda file, out: ["convert", str(file.parent), str(out), "--dtype", "float32"],
    "model index": lambda file, out: ["generate", "--model", str(file.parent), "--prompt", "a"],
    "recording": lambda file, out: ["calibrate", "--locality", str(file), "--out", f"{out}.toml"],
    "forecast": lambda file, out: ["convert", str(file), f"{out}.pt", "--shape", "smollm2-135m"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("text", TEXTS, ids=["nothing", "null", "deep", "another", "endless"])
def test_a_command_over_a_spoilt_file_says_so_in_one_line_and_leaves_nothing(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reader,) = (one for one in DOCUMENTS if one.name == name)
    assert reader.put is not None
    path = reader.made(tmp_path / "in")
    reader.put(path, text)
    before = {file.name for file in tmp_path.rglob("*")}
    code = main(COMMANDS[name](path, tmp_path / "out"))
    said = capsys.readouterr().err.strip().splitlines()
    assert code == BAD_INPUT, said
    assert said[-1].startswith("sparda: error: "), said
    assert {file.name for file in tmp_path.rglob("*")} == before
