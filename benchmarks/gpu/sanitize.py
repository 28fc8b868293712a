"""Every kernel of ours under NVIDIA's compute-sanitizer: accesses out of bounds, and races in shared memory.

python -m benchmarks.gpu.sanitize [--out FOLDER] [--tools memcheck racecheck]

One line a tool; exit code 1 where one found something, or a kernel was not launched, 2 where it cannot run here. Every
tensor is an allocation of its own, so that a kernel that leaves one is caught; whole logs go to --out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")
WHERE = re.compile(r"=========\s+(?:at|in) ([\w:<>(), ]+?)\+0x")
SCRIPT = ("-m", "benchmarks.gpu.every_kernel")
#: Seconds that one tool may take.
LIMIT = 150


def sanitizer() -> str | None:
    """Where compute-sanitizer lies."""
    return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))


def check(program: str, tool: str, folder: Path) -> bool:
    """Run a tool, print its line; whether it found nothing."""
    began = time.perf_counter()
    log = folder / f"{tool}.log"
    command = [program, "--tool", tool, "--print-limit", "50", "--log-file", str(log), sys.executable, *SCRIPT]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        print(f"{tool}: NOT DONE within {LIMIT} s", flush=True)
        return False
    (folder / f"{tool}.txt").write_text(done.stdout + done.stderr)
    found = log.read_text(errors="replace") if log.exists() else ""
    summary = (SUMMARY.findall(found) or [f"no summary; see {log} and {tool}.txt"])[-1]
    clean = re.search(r"SUMMARY: 0 (?:errors|hazards)", summary) is not None and done.returncode == 0
    said = done.stdout.strip().splitlines()[-1:] or [(done.stderr.strip().splitlines() or ["nothing printed"])[-1]]
    places = sorted(set(WHERE.findall(found)))[:5]
    line = f"{tool}: {'clean' if clean else 'NOT CLEAN'} in {time.perf_counter() - began:.0f} s: {summary}; {said[0]}"
    print(line + (f"; in {', '.join(places)}" if places else ""), flush=True)
    return clean


def main() -> int:
    """Run the tools."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", default=["memcheck", "racecheck"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    program = sanitizer()
    if program is None or not torch.cuda.is_available():
        lacks = "CUDA device" if program is not None else "compute-sanitizer (it comes with the CUDA toolkit)"
        said = f"sanitize: no {lacks} on this machine; `python -m {SCRIPT[1]}` launches the same kernels"
        print(said, file=sys.stderr)
        return 2
    folder = (args.out or Path(tempfile.mkdtemp(prefix="sanitize-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # Kernels are compiled, and kept on disk, before anything is watched.
    if subprocess.run([sys.executable, *SCRIPT], cwd=ROOT, check=False, timeout=LIMIT).returncode:
        return 1
    clean = [check(program, tool, folder) for tool in args.tools]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
