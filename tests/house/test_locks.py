"""A lock beside what is written: one writer at a time, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparda_core.cli.main import main
from sparda_core.errors import ConfigError
from sparda_core.locks import locked, locked_folder

_HOLD = "import sys; from pathlib import Path; from sparda_core.locks import locked\nwith locked(Path(sys.argv[1])):\n"
HOLDER = _HOLD + "    print('held', flush=True); sys.stdin.read()\n"


def test_a_second_process_is_refused_with_the_first_ones_number_until_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "forecast.safetensors"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"being written by another run \(process {first.pid}\)"), locked(out):
            pass
        first.communicate("")
    with locked(out):
        assert [path.name for path in tmp_path.iterdir()] == ["forecast.safetensors.lock"]
    assert not list(tmp_path.iterdir())


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "forecast.safetensors"
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        one.kill()
    assert (tmp_path / "forecast.safetensors.lock").exists()
    with locked(out):
        pass
    assert not list(tmp_path.iterdir())


def test_what_is_locked_is_let_go_after_an_error(tmp_path: Path) -> None:
    out = tmp_path / "a"
    with pytest.raises(ValueError, match="mine"), locked(out):
        raise ValueError("mine")
    with locked(out), pytest.raises(ConfigError, match="another run"), locked(out):
        pass


def test_a_folder_is_held_by_a_file_in_it_and_goes_again_where_nothing_came_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked_folder(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
        with pytest.raises(ConfigError, match="run' is being written by another run"), locked_folder(folder):
            pass
    assert not folder.exists()
    with locked_folder(folder):
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]
    (tmp_path / "empty").mkdir()
    with locked_folder(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    "words",
    [("validate", "--device", "cpu", "--model", "tiny"), ("validate", "--predict-only"), ("compare", "--no-resume")],
    ids=" ".join,
)
def test_commands_that_fill_a_folder_hold_it(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts").mkdir()
    with locked_folder(tmp_path):
        assert main([*words, "--out", str(tmp_path)]) == 2
    assert "is being written by another run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
