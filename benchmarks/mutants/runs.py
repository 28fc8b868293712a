"""Running mutants: a copy of the tree for every worker, a bug put into it, its tests, the bug taken out again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks.mutants.declared import Mutant
from sparda_core.errors import ConfigError

#: What a run of pytest says by its exit code; anything else and the mutant tells nothing.
_PASSED, _FAILED = 0, 1
CAUGHT, MISSED, BROKEN, HUNG = "caught", "missed", "broken", "hung"
_FAILURE = re.compile(r"^FAILED (\S+)", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Outcome:
    """How a mutant fared.

    result  caught, missed, hung (its tests did not end, which counts as noticed) or broken (they could not be run)
    by      the first test that failed; empty where none did
    says    the end of what pytest printed, where the mutant was missed or broken
    """

    name: str
    result: str
    by: str
    took_s: float
    digest: str
    says: str = ""


class Copy:
    """A copy of the tree in which tests are run, one mutant at a time."""

    def __init__(self, root: Path, *, limit_s: float) -> None:
        self.root, self.limit_s = root, limit_s
        self._child: subprocess.Popen[str] | None = None

    def check(self) -> None:
        """Raise ConfigError unless tests run here load the code that lies here."""
        said = subprocess.run(
            [sys.executable, "-c", "import sparda_core; print(sparda_core.__file__)"], cwd=self.root, env=self._env(),
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not Path(said.strip()).is_relative_to(self.root):
            raise ConfigError(f"tests would load {said.strip()}, not the copy in {self.root}; unset PYTHONPATH")

    def passes(self, tests: tuple[str, ...]) -> tuple[bool, str]:
        """Whether tests pass as things are, and the end of what they print."""
        code, said = self._pytest(tests, limit_s=len(tests) * self.limit_s)
        return code == _PASSED, said

    def stop(self) -> None:
        """End the tests under way, if any, and let go of the process that runs them."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def run(self, mutant: Mutant, digest: str) -> Outcome:
        """Put the bug in, run its tests, take it out."""
        began_s = time.monotonic()
        with self._mutated(mutant):
            code, said = self._pytest(mutant.tests, limit_s=mutant.limit_s or self.limit_s)
        result = {_PASSED: MISSED, _FAILED: CAUGHT, None: HUNG}.get(code, BROKEN)
        failed = _FAILURE.search(said)
        return Outcome(
            name=mutant.name, result=result, by=failed[1] if failed and result == CAUGHT else "",
            took_s=round(time.monotonic() - began_s, 1), digest=digest,
            says="" if result in (CAUGHT, HUNG) else said[-600:],
        )  # fmt: skip

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        before, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.applied(self.root), encoding="utf-8")
        try:
            yield
        finally:
            # With its times: what was compiled from the file as it was is found again.
            path.write_text(before, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _env(self) -> dict[str, Any]:
        return {
            **os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "SPARDA_TEST_PROFILE": "ci",
            "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "400",
        }  # fmt: skip

    def _close(self) -> None:
        """Let go of the process, which has ended."""
        child, self._child = self._child, None
        for stream in () if child is None else (child.stdin, child.stdout):
            with contextlib.suppress(OSError):  # what it never read is still to be written
                assert stream is not None
                stream.close()

    def close(self) -> None:
        """End all."""
        self.stop()
        self._close()

    def _pytest(self, tests: tuple[str, ...], *, limit_s: float) -> tuple[int | None, str]:
        """Exit code, None where time ran out, and what was printed."""
        if self._child is None or self._child.poll() is not None:
            self._close()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.mutants.zygote"], cwd=self.root, env=self._env(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        child, log = self._child, self.root / "pytest.log"
        assert child.stdin is not None
        assert child.stdout is not None
        log.unlink(missing_ok=True)
        arguments = [str(log), "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
        child.stdin.write(json.dumps(arguments) + "\n")
        child.stdin.flush()
        if not select.select([child.stdout], [], [], limit_s)[0]:
            self.stop()
        answer = child.stdout.readline()  # empty where it was stopped
        said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return (int(answer) if answer else None), said
