"""Tests that look harder, with more examples than `make test` has time for, file by file, within a number of minutes.

usage: python -m benchmarks.nightly [WORD ...] [--minutes N] [--examples N] [--out FILE] [--resume] [--json]

Each file runs in a process of its own under the hypothesis profile `nightly` (1,000 examples a test). A file that is
not done in its share of the minutes is stopped, which is no failure: what it tried until then held. What failed is kept
with the example that hypothesis shrank it to. Exit code 0: nothing failed; 1: something did; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.progress import Progress

from benchmarks.kept import add_kept, parser_of, run_kept
from sparda_core.bench.provenance import provenance
from sparda_core.errors import ConfigError
from sparda_core.files import parse_json, read_document, write_whole

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "nightly.json"
PASSED, FAILED, STOPPED = "passed", "failed", "stopped"
#: A file is given at least so long: collecting it and compiling what it needs takes a while.
LEAST_S = 20.0
#: What a file imports that looks harder under the profile.
_HARDER = re.compile(r"^from (hypothesis|tests\.profiles) import", re.MULTILINE)
_EXAMPLES = re.compile(r"- (\d+) passing")
#: What pytest prints of tests that ended, a letter each.
_LETTERS = re.compile(r"^[.sxXFE]+(?=\s|$)", re.MULTILINE)
_ALL_PASSED = re.compile(r"^\d+ passed[^\n]* in [\d.]+s", re.MULTILINE)
_FAILURE = re.compile(r"^FAILED (\S+)(?: - (.*))?$", re.MULTILINE)


def _pairs(found: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((test, why) for test, why in found)


@attrs.frozen(kw_only=True)
class Outcome:
    """One file.

    result    passed, failed, or stopped when its time was over, with nothing failed until then
    tests     that ended, those of them included that hypothesis does not drive
    examples  that passed, as hypothesis counts; it tells at the end, hence 0 for a file that was stopped
    failures  node id and first line of each failure
    says      the end of what pytest printed, where something failed
    """

    file: str
    result: str
    tests: int = 0
    examples: int = 0
    took_s: float = 0.0
    failures: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_pairs)
    says: str = ""


def property_files(words: Sequence[str] = (), root: Path = ROOT) -> list[str]:
    """Files of tests that look harder under `nightly`, in order of names; with words, those whose path has one of them.

    They are driven by hypothesis, here or in sparda_core/testing, or try every moment of a call rather than some.
    """
    files = [
        path.relative_to(root).as_posix() for path in sorted((root / "tests").rglob("test_*.py"))
        if _HARDER.search(path.read_text(encoding="utf-8"))
    ]  # fmt: skip
    chosen = [file for file in files if not words or any(word in file for word in words)]
    if not chosen:
        raise ConfigError(f"no file of property tests has {' or '.join(words)} in its path; known: {', '.join(files)}")
    return chosen


def run_file(file: str, limit_s: float, examples: int = 1000) -> Outcome:
    """Run one file for at most so long."""
    command = [
        sys.executable, "-m", "pytest", file, "-q", "-m", "not gpu and not model", "--hypothesis-show-statistics",
        "-p", "no:cacheprovider", "--tb=short",
    ]  # fmt: skip
    env = {
        **os.environ, "SPARDA_TEST_PROFILE": "nightly", "SPARDA_TEST_EXAMPLES": str(examples), "OMP_NUM_THREADS": "1",
        "COLUMNS": "400",
    }  # fmt: skip
    began_s = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            said, _ = child.communicate(timeout=limit_s)
        except BaseException as ended:
            os.killpg(child.pid, signal.SIGKILL)  # ours: its session was made above
            said, _ = child.communicate()
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
    took_s = time.monotonic() - began_s
    return outcome_of(file, None if took_s >= limit_s else child.returncode, said, took_s)


def outcome_of(file: str, code: int | None, said: str, took_s: float) -> Outcome:
    """What a run's exit code (None: stopped) and what it printed amount to."""
    failures = tuple((test, why or "") for test, why in _FAILURE.findall(said))
    if code is None and _ALL_PASSED.search(said):  # it was only about to leave
        code = 0
    # pytest's 5: no test is left after `not gpu and not model`
    result = FAILED if failures or code not in (None, 0, 5) else STOPPED if code is None else PASSED
    ended = "".join(_LETTERS.findall(said))
    return Outcome(
        file=file, result=result, tests=len(ended) - ended.count("s"), examples=sum(map(int, _EXAMPLES.findall(said))),
        took_s=round(took_s, 1), failures=failures, says=said[-3000:] if result == FAILED else "",
    )  # fmt: skip


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Outcomes of an earlier run by file; nothing where there was none. Raises ConfigError for another document."""
    if not path.exists():
        return {}
    try:
        return {entry["file"]: Outcome(**entry) for entry in parse_json(read_document(path))["files"]}
    except (AttributeError, LookupError, TypeError, ValueError) as wrong:
        raise ConfigError(f"{path}: not what this script wrote ({wrong!r}); name another file with --out") from wrong


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = parser_of("benchmarks.nightly", __doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only files with one of these words in their path")
    parser.add_argument("--minutes", type=float, default=480, help="for all files together (default: 480)")
    parser.add_argument("--examples", type=int, default=1000, metavar="N", help="a test (default: 1000)")
    add_kept(parser, OUT, resume="keep what passed in --out")
    args = parser.parse_args(argv)
    screen = Console(stderr=True)
    code, document = run_kept(lambda: _run(property_files(args.words), args, screen), args.out, screen)
    if document is None:
        return code
    if args.json:
        print(json.dumps(document, indent=1))
    return 1 if document["failed"] else 0


def _run(files: Sequence[str], args: argparse.Namespace, screen: Console) -> dict[str, object]:
    if not 0 < args.minutes < 10_000:
        raise ConfigError(f"minutes={args.minutes:g} must be between 0 and 10,000")
    if args.examples < 1:
        raise ConfigError(f"examples={args.examples} must be >= 1")
    # What is not asked for now stays as it was.
    kept = {
        file: one for file, one in (read_outcomes(args.out) if args.resume else {}).items()
        if one.result == PASSED or file not in files
    }  # fmt: skip
    done = list(kept.values())
    todo = [file for file in files if file not in kept]
    ends_s, about = time.monotonic() + 60 * args.minutes, provenance()
    document = _document(done, about, args)
    with Progress(console=screen, transient=True) as bars:
        bar = bars.add_task("files", total=len(todo))
        for number, file in enumerate(todo):
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                screen.print(f"the minutes are over: {len(todo) - number} files were not begun", markup=False)
                break
            # What fast files leave over is the others'.
            done.append(run_file(file, max(LEAST_S, left_s / (len(todo) - number)), args.examples))
            last = done[-1]
            document = _document(done, about, args)
            write_whole(args.out, json.dumps(document, indent=1) + "\n")
            screen.print(f"{last.result:7} {file} ({last.examples} examples, {last.took_s:.0f} s)", markup=False)
            for test, why in last.failures:
                screen.print(f"        {test}: {why}", markup=False)
            bars.advance(bar)
    return document


def _document(done: Sequence[Outcome], about: dict[str, object], args: argparse.Namespace) -> dict[str, object]:
    results = [one.result for one in done]
    return {
        "what": "property tests under the hypothesis profile `nightly`", "minutes": args.minutes,
        "examples_a_test": args.examples,
        **{name: results.count(name) for name in (PASSED, FAILED, STOPPED)},
        "examples": sum(one.examples for one in done),
        "files": [attrs.asdict(one) for one in sorted(done, key=lambda one: one.file)],
        "provenance": about,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
