"""Runs pytest again and again, each time in a fork of a process that has loaded large libraries and none of our code.

Started in a copy of the tree. Reads one JSON list a line, [file for what is printed, arguments of pytest ...], and
answers each with a line: pytest's exit code, or minus the signal that ended it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

#: What most tests load first; several seconds that every run is spared.
LIBRARIES = (
    "numpy", "torch", "numba", "hypothesis", "hypothesis.stateful", "pytest", "simpy", "attrs", "rich.progress",
)  # fmt: skip
#: hypothesis has a plug-in for pytest, which would rather load it itself.
_QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def main() -> None:
    """Serve until standard input ends."""
    for name in LIBRARIES:
        importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "sparda_core"]
    assert not loaded, f"{loaded} would not be loaded anew"
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(log, arguments)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(log: str, arguments: list[str]) -> None:
    """Never returns: what pytest leaves behind ends with the process."""
    code = 3  # pytest's own for a failure of its own
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        pytest = importlib.import_module("pytest")
        code = int(pytest.main([*_QUIET, *arguments]))
    except BaseException:  # noqa: BLE001 - told in the log; the code says that pytest failed
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
