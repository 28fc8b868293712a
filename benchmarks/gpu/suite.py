"""The GPU suite by one command: every test of tests/gpu on this machine's GPU, its result kept with provenance.

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
            sys.executable, "-m", "pytest", "tests/gpu", "-v", "--dist", "loadgroup", f"--junitxml={report}", *rest,
        ]  # fmt: skip
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(THREADS))
        code = subprocess.run(command, cwd=ROOT, check=False, env={**threads, **os.environ}).returncode
        result = {"gpu": machine, "exit_code": code, **summary(report), "provenance": provenance()}
    write_whole(args.out, json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps({name: result[name] for name in ("tests", "passed", "failed", "skipped")}) + "\n")
    return code


def summary(report: Path) -> dict[str, Any]:
    """Counts by outcome, seconds, and the name and first line of whatever failed or was skipped."""
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314  see the import
    outcomes = {name: [] for name in ("failure", "error", "skipped")}
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
