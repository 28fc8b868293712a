"""`sparda COMMAND ...`: finds the command, runs it, and turns every expected failure into one line."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from sparda_core import __version__
from sparda_core.cli.parser import Parser
from sparda_core.errors import ConfigError, SpardaError, UnknownNameError

#: Exit codes: bad input, or a machine that cannot do it; a defect of ours; interrupted (128 + SIGINT), or terminated.
BAD_INPUT, DEFECT, INTERRUPTED = 2, 1, 130

#: Command -> (module in this folder, what it does). Only the module of the command given is loaded.
COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("compare", "measure every selector under every runtime on one text: quality, time, prediction"),
    "generate": ("generate", "continue a prompt under one selector and runtime"),
    "predict": ("predict", "predict a decode step or a prefill on a machine; needs neither the machine nor weights"),
    "whatif": ("whatif", "predict a grid of points: what wins where, and where one choice stops beating another"),
    "advise": ("advise", "say which combination serves a model on a machine best, and whether offloading pays"),
    "calibrate": ("calibrate", "measure this machine and write a profile that predict reads"),
    "validate": ("validate", "measure cells and hold predictions against them, or against the paper's published table"),
    "timeline": ("timeline", "write Perfetto traces of one combination, measured and predicted"),
    "record": ("record", "store the selections of a run; the selector `replay` plays them back"),
    "train": ("train", "train Forecast projections for a model"),
    "adapt": ("adapt", "continue a model's own training under sparse attention, as the paper's bases had"),
    "convert": ("convert", "bring Forecast weights from the release's format into ours and back, models into a dtype"),
    "evaluate": ("evaluate", "judge methods on held-out text: recall, KL, churn, misses, tasks, with intervals"),
    "texts": ("texts", "fetch, check and split the texts that `evaluate` and `train` may read"),
    "bench": ("bench", "measure decode steps of an 8B shape on this machine's GPU, against their floors"),
    "capacity": ("capacity", "plan the memory of decoding on a GPU: where each byte goes, and what fits"),
    "methods": ("methods", "list selectors and runtimes, and which of them fit together"),
    "profile": ("profile", "list, show, start or check hardware profiles"),
}

#: Packages that only some commands need, and the extra that brings each.
EXTRAS = {
    "torch": "torch", "numba": "torch", "safetensors": "torch", "tokenizers": "torch", "gguf": "torch",
    "matplotlib": "plot",
}  # fmt: skip


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: Parser) -> None:
        """Add the command's options."""

    def run(self, args: Namespace) -> int:
        """Run it; returns the exit code, raises SpardaError or OSError."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` without the program's name, else the process's own. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _end_as_after_ctrl_c()
    _open_streams()
    try:
        code = _run(words)
        sys.stdout.flush()
    except SystemExit as done:  # how argparse leaves after --help and --version
        return int(done.code or 0)
    except BrokenPipeError:  # whoever read our output has gone; the flush at exit must not complain again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DEFECT
    except (Exception, KeyboardInterrupt) as wrong:  # noqa: BLE001 - a defect, too, is one line unless --debug
        if "--debug" in words:
            traceback.print_exc()
        code, text = explain(wrong)
        sys.stderr.write(f"sparda: {text}\n")
    return code


def _end_as_after_ctrl_c() -> None:
    """Let SIGTERM, from a scheduler or `timeout`, clean up and say what is kept, as Ctrl-C does.

    Left as it is among processes of torchrun: one that waits for another in a collective would not hear of it.
    """
    if "LOCAL_RANK" not in os.environ and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Let every command write: to nowhere where a stream is closed, and `?` for a character that it cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def explain(wrong: BaseException) -> tuple[int, str]:
    """Exit code, and the one line that says what happened."""
    if isinstance(wrong, KeyboardInterrupt):
        return INTERRUPTED, str(wrong) or "interrupted"
    if isinstance(wrong, SpardaError):
        text = str(wrong)
    elif isinstance(wrong, OSError):
        place = f"{wrong.filename}: " if wrong.filename is not None else ""
        text = f"{place}{wrong.strerror or wrong}"
    elif _out_of_memory(wrong):
        text = f"this machine's memory is too small for it: {wrong}".removesuffix(": ")
    elif isinstance(wrong, ModuleNotFoundError) and (wrong.name or "").partition(".")[0] in EXTRAS:
        name = str(wrong.name).partition(".")[0]
        text = f"this needs the package {name}, which is not installed; run `pip install 'sparda[{EXTRAS[name]}]'`"
    else:
        text = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        return DEFECT, f"internal error: {text}; run again with --debug to see where"
    return BAD_INPUT, f"error: {' '.join(text.split())}"


def _out_of_memory(wrong: BaseException) -> bool:
    # torch has no class of its own for a CPU's memory; its allocator is named in the text.
    words = ("DefaultCPUAllocator", "CUDA out of memory")
    torch_says = isinstance(wrong, RuntimeError) and any(word in str(wrong) for word in words)
    return torch_says or isinstance(wrong, MemoryError)


def _run(words: list[str]) -> int:
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), None)
    if at is None:
        return _without_command(words)
    name = words[at]
    if name not in COMMANDS:
        raise UnknownNameError(what="command", name=name, known=COMMANDS)
    module, summary = COMMANDS[name]
    command = cast("Command", importlib.import_module(f"sparda_core.cli.{module}"))
    parser = Parser(prog=f"sparda {name}", description=f"{summary[0].upper()}{summary[1:]}.")
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    return command.run(parser.parse(words[:at] + words[at + 1 :]))


def _without_command(words: list[str]) -> int:
    if set(words) & {"-h", "--help"}:
        sys.stdout.write(_overview())
    elif "--version" in words:
        sys.stdout.write(f"sparda {__version__}\n")
    else:
        raise ConfigError(f"no command given; choose one of {', '.join(COMMANDS)} (see `sparda --help`)")
    return 0


def _overview() -> str:
    commands = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: sparda COMMAND [options]\n\n"
        "Block-sparse attention with an offloaded KV cache: measured, and predicted.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n  --help     this text; after a command, its options with units and defaults\n"
        "  --version  the version\n  --debug    show where an error comes from\n"
    )


if __name__ == "__main__":
    sys.exit(main())
