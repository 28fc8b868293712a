from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparda_core import __version__
from sparda_core.cli.main import COMMANDS, explain, main
from sparda_core.cli.options import selector_options
from sparda_core.cli.parser import Parser
from sparda_core.cli.screen import cell, plain, seconds, size
from sparda_core.errors import CapacityError, ConfigError
from sparda_core.shapes import BlockSpec

Captured = pytest.CaptureFixture[str]


def refusal(capsys: Captured, *argv: str) -> str:
    """Run a command that must refuse: exit code 2, nothing on stdout, one line on stderr, which is returned."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sparda: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def stand_in(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    def run(args: Any) -> int:
        raise raised

    module = SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)


def test_help_lists_every_command_and_succeeds(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert name in out
        assert summary in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_its_own_options(command: str, capsys: Captured) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: sparda {command}")
    assert "--debug" in out


@pytest.mark.parametrize("command", sorted({module for module, _ in COMMANDS.values()}))
def test_every_option_says_what_it_is(command: str) -> None:
    parser = Parser(prog="sparda", description="")
    importlib.import_module(f"sparda_core.cli.{command}").add_arguments(parser)
    for action in parser._actions:
        assert action.help, action.dest


def test_version_is_printed(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sparda {__version__}\n"


def test_no_command_is_an_error_that_lists_them(capsys: Captured) -> None:
    assert ", ".join(COMMANDS) in refusal(capsys)


def test_an_unknown_command_answers_with_the_nearest(capsys: Captured) -> None:
    assert "did you mean 'predict'?" in refusal(capsys, "predikt")


def test_an_unknown_option_answers_with_the_nearest(capsys: Captured) -> None:
    assert "did you mean --budget?" in refusal(capsys, "methods", "--budgt", "4")


def test_an_option_is_never_guessed_from_its_beginning(capsys: Captured) -> None:
    assert "--budg" in refusal(capsys, "methods", "--budg", "8")


@pytest.mark.parametrize(
    ("value", "says"), [("0", "'0' must be an integer >= 1"), ("two", "'two' must be an integer >= 1")]
)
def test_a_number_out_of_bounds_names_the_bound(value: str, says: str, capsys: Captured) -> None:
    assert says in refusal(capsys, "methods", "--budget", value)


def test_a_budget_below_the_forced_blocks_says_how_many_they_are(capsys: Captured) -> None:
    said = refusal(capsys, "methods", "--budget", "4")
    assert "budget=4 must be >= 5 (sink=1 + local=3 + the current block)" in said


def test_an_unknown_shape_answers_with_the_nearest(capsys: Captured) -> None:
    assert "did you mean 'smollm2-135m'?" in refusal(capsys, "methods", "--shape", "smollm2")


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (ConfigError("x=1 must be\n>= 2"), 2, "error: x=1 must be >= 2"),
        (CapacityError(tier="host", need=3, free=1, unit="blocks", hint="lower batch"), 2, "error: tier='host' needs"),
        (OSError(errno.ENOSPC, "No space left on device", "/r/a.json"), 2, "error: /r/a.json: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/r"), 2, "error: /r: Permission denied"),
        (OSError("odd"), 2, "error: odd"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "error: this needs the package torch"),
        (ModuleNotFoundError("No module named 'torch.x'", name="torch.x"), 2, "error: this needs the package torch"),
        (ModuleNotFoundError("No module named 'zzz'", name="zzz"), 1, "internal error: ModuleNotFoundError"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("interrupted; 3 parts kept"), 130, "interrupted; 3 parts kept"),
        (ZeroDivisionError("division by zero"), 1, "internal error: ZeroDivisionError: division by zero"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_goes_wrong_is_one_line_and_a_code(
    raised: BaseException, code: int, line: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, raised)
    assert main(["methods"]) == code
    err = capsys.readouterr().err
    assert err.startswith(f"sparda: {line}")
    assert err.count("\n") == 1


def test_debug_shows_where_an_error_comes_from(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, ConfigError("wrong"))
    assert main(["methods", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("sparda: error: wrong\n")


def test_a_reader_that_goes_away_causes_no_traceback() -> None:
    command = f"{sys.executable} -m sparda_core.cli.main methods --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr


def test_every_sparda_error_is_bad_input() -> None:
    assert explain(ConfigError("a"))[0] == explain(OSError("b"))[0] == 2


def test_selector_options_become_numbers_truth_values_or_text() -> None:
    given = ["seed=7", "share=0.5", "exact=True", "scoring=entry-raw"]
    assert selector_options(given) == {"seed": 7, "share": 0.5, "exact": True, "scoring": "entry-raw"}


@pytest.mark.parametrize("pair", ["seed", "=7", "a b=1"])
def test_a_selector_option_without_name_and_value_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="must be NAME=VALUE"):
        selector_options([pair])


def test_json_has_no_nan_no_arrays_and_no_classes() -> None:
    value = {
        "spec": BlockSpec(), "nan": float("nan"), "ids": np.arange(2, dtype=np.int32), "one": np.float32(1.5),
        "inf": [np.float64("inf")], "path": Path("a"), "set": frozenset({"b", "a"}), 3: True,
    }  # fmt: skip
    read = json.loads(json.dumps(plain(value), allow_nan=False))
    assert read["spec"]["block"] == 64
    assert read["nan"] is None
    assert read["ids"] == [0, 1]
    assert read["one"] == 1.5
    assert read["inf"] == [None]
    assert (read["path"], read["set"], read["3"]) == ("a", ["a", "b"], True)


def test_figures_are_shown_with_the_unit_that_fits() -> None:
    assert [seconds(v) for v in (1.5, 0.0123, 4.2e-6, 0.0, float("nan"))] == ["1.5 s", "12.3 ms", "4.2 us", "0", "-"]
    assert [size(v) for v in (12, 2_000, 3.5e9, None)] == ["12 B", "2 kB", "3.5 GB", "-"]
    assert [cell(v) for v in (None, True, 0.123456, "a", 7)] == ["-", "yes", "0.1235", "a", "7"]
