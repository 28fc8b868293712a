"""Long runs that keep their outcomes end in a code and a line, whatever ends them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.kept import add_kept, parser_of, run_kept
from sparda_core.errors import ConfigError


def _raise(wrong: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise wrong

    return work


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (_raise(ConfigError("minutes=0 is none")), 2, "error: minutes=0 is none"),
        (_raise(FileNotFoundError(2, "No such file", "a.txt")), 2, "error: a.txt: No such file"),
        (_raise(KeyboardInterrupt()), 130, "--resume goes on"),
        (lambda: 5, 0, ""),
    ],
)
def test_a_run_ends_in_a_code_and_a_line(work: Callable[[], int], code: int, said: str, tmp_path: Path) -> None:
    screen = Console(file=io.StringIO(), width=400)
    assert run_kept(work, tmp_path / "out.json", screen) == (code, None if code else 5)
    assert isinstance(screen.file, io.StringIO)
    assert said in screen.file.getvalue()
    assert run_kept(lambda: pytest.fail("begun"), tmp_path / "no" / "out.json", screen) == (2, None)


def test_the_options_of_a_kept_run() -> None:
    parser = parser_of("benchmarks.some", "One line.\nAnother.")
    add_kept(parser, Path("a.json"), resume="keep what passed")
    args = parser.parse_args(["--resume"])
    assert (args.out, args.resume, args.json) == (Path("a.json"), True, False)
    assert parser.description == "One line."
