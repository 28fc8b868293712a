"""The GPU suite by one command: tests/gpu and every test marked `gpu`, on this machine's GPU, its result kept.

python benchmarks/gpu/suite.py [--out benchmarks/results/DATE-gpu-suite.json] [pytest options ...]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from sparda_core.bench.gpu_machine import gpu
from sparda_core.bench.provenance import provenance
from sparda_core.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
#: Of the CPU, for each process, where the environment says nothing: with `-n 12` every process would take all cores.
THREADS = 2
#: pytest's exit code where it found no test.
NONE_COLLECTED = 5


def main() -> int:
    """Run the suite; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    day = dt.datetime.now(dt.UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{day}-gpu-suite.json")
    args, rest = parser.parse_known_args()
    machine = gpu()
    if machine is None:
        parser.error("no CUDA device on this machine; `make test` runs the same tests by Triton's interpreter")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Tests of one group stay in one process; each process has its share of the cores.
        command = [
            sys.executable, "-m", "pytest", "tests/gpu", *elsewhere(), "-v", "--dist", "loadgroup",
            f"--junitxml={report}", *rest,
        ]  # fmt: skip
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(THREADS))
        code = subprocess.run(command, cwd=ROOT, check=False, env={**threads, **os.environ}).returncode
        result = {"gpu": machine, "exit_code": code, **summary(report), "provenance": provenance()}
    write_whole(args.out, json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps({name: result[name] for name in ("tests", "passed", "failed", "skipped")}) + "\n")
    return code


def elsewhere() -> list[str]:
    """What else a GPU is asked: tests outside tests/gpu that are marked `gpu`, and files that take any device.

    Only files that hold the mark are collected, since collecting all tests would import everything. A test that wants
    more GPUs than there are skips itself, and the result has its reason. Raises RuntimeError where one of these files
    cannot be collected.
    """
    tests = ROOT / "tests"
    paths = [path for path in sorted(tests.rglob("test_*.py")) if tests / "gpu" not in path.parents]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    either = [path for path, text in texts.items() if "\nfrom tests.gpu_env import" in text]
    marked = [path for path, text in texts.items() if "pytest.mark.gpu" in text and path not in either]
    return either + (collected(marked) if marked else [])


def collected(files: list[str]) -> list[str]:
    """Node ids of the tests marked `gpu` in these files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *files]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode not in (0, NONE_COLLECTED):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def summary(report: Path) -> dict[str, Any]:
    """Counts by outcome, seconds, and the name and first line of whatever failed or was skipped."""
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314  see the import
    outcomes: dict[str, list[dict[str, str | None]]] = {name: [] for name in ("failure", "error", "skipped")}
    for case in cases:
        for name, found in outcomes.items():
            part = case.find(name)
            if part is not None:
                test = f"{case.get('classname')}::{case.get('name')}"
                found.append({"test": test, "why": part.get("message", "")[:300]})
    broken = outcomes["failure"] + outcomes["error"]
    return {
        "tests": len(cases), "passed": len(cases) - len(broken) - len(outcomes["skipped"]), "failed": len(broken),
        "skipped": len(outcomes["skipped"]), "seconds": sum(float(case.get("time", 0)) for case in cases),
        "failures": broken, "skips": outcomes["skipped"],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
