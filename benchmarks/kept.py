"""What the long runs of this folder share that keep every outcome in a file: options, errors, going on after Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from sparda_core.cli.main import BAD_INPUT, INTERRUPTED, explain
from sparda_core.errors import SpardaError
from sparda_core.files import check_place

T = TypeVar("T")


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE`, described by the first line of its docstring."""
    return argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").split("\n")[0])


def add_kept(parser: argparse.ArgumentParser, out: Path, *, resume: str) -> None:
    """--out, --resume and --json; `resume` says what stays."""
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help="where every outcome is kept")
    parser.add_argument("--resume", action="store_true", help=resume)
    parser.add_argument("--json", action="store_true", help="print the outcomes")


def run_kept(work: Callable[[], T], out: Path, screen: Console) -> tuple[int, T | None]:
    """(0, what `work` returns), or an exit code other than 0 and nothing; it says what went wrong, and what goes on."""
    try:
        check_place(out)
        return 0, work()
    except (SpardaError, OSError) as wrong:
        screen.print(explain(wrong)[1], markup=False)
        return BAD_INPUT, None
    except KeyboardInterrupt:
        screen.print(f"interrupted; what is done is in {out}: --resume goes on", markup=False)
        return INTERRUPTED, None
