"""Streams as a shell, a pipe or a bare process gives them."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparda_core.cli.main import explain, main
from tests.cli.conftest import Refusal
from tests.cli.files import SPEC, Files

ROOT = Path(__file__).parents[2]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell in which $SPARDA is the command."""
    command = f"{sys.executable} -m sparda_core.cli.main"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPARDA": command, **environment}
    return subprocess.run(["sh", "-c", line], env=variables, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(("line", "code"), [("$SPARDA profile list >&-", 0), ("$SPARDA nope 2>&-", 2)])
def test_a_closed_stream_is_no_defect(line: str, code: int) -> None:
    done = shell(line)
    assert done.returncode == code
    assert b"internal error" not in done.stderr


def test_characters_that_a_terminal_cannot_show_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", bare)
    assert main(["methods", "--shape", "schön"]) == 2
    bare.flush()
    assert isinstance(bare.buffer, io.BytesIO)
    assert b"shape='sch?n' is unknown" in bare.buffer.getvalue()


def test_a_prompt_with_stray_bytes_is_refused(refusal: Refusal, tiny: Files) -> None:
    said = refusal("generate", os.fsdecode(b"a\xffb"), "--model", tiny.model, "--forecast", tiny.forecast, *SPEC)
    assert "the text is not UTF-8 (character 1" in said


@pytest.mark.parametrize(
    "wrong", [MemoryError(), MemoryError("of 3 GB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_the_machine_and_no_defect(wrong: Exception) -> None:
    code, text = explain(wrong)
    assert code == 2
    assert text.startswith("error: this machine's memory is too small for it")


def test_a_runtime_error_of_another_kind_stays_a_defect() -> None:
    assert explain(RuntimeError("shapes differ"))[0] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict", "--context", "1" + "0" * 30), "context=.* must be between 1 and 2147483647"),
        (("predict", "--batch", "1000000000"), "batch=1000000000 must be <= "),
        (("predict", "--slots", "1" + "0" * 30), "slots=.* must be between 1 and 2147483647"),
        (("predict", "--link-gb-s", "inf"), "'inf' must be a number between "),
        (("predict", "--selector", "replay", "--selector-option", "path=5"), "path=5 must name a file"),
        (("predict", "--selector-option", "name=5"), "unexpected keyword argument 'name'"),
        (("generate", "x", "--seed", "1" + "0" * 30), "must be an integer between 0 and 9223372036854775807"),
        (("generate", "x", "--threads", "1000000"), "must be an integer between 1 and 4096"),
    ],
)
def test_numbers_beyond_all_measure_are_refused(refusal: Refusal, words: tuple[str, ...], says: str) -> None:


    assert re.search(says, refusal(*words))


def test_a_terminated_command_cleans_up_as_after_ctrl_c(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, tempfile, time\n"
        "from sparda_core.cli import main as cli, methods\n"
        "def run(args):\n"
        "    with tempfile.TemporaryDirectory(dir=args.shape):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(30)\n"
        "methods.run = run\n"
        "sys.argv = ['sparda', 'methods', '--shape', sys.argv[1]]\n"
        "sys.exit(cli.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, b"sparda: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_processes_of_torchrun_keep_their_own_way_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["sparda", "--version"])
    before = signal.getsignal(signal.SIGTERM)
    assert main() == 0
    assert signal.getsignal(signal.SIGTERM) is before
