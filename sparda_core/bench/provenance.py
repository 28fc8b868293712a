"""Where numbers come from: machine, versions, commit, date, command. Torch-free."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import sparda_core

PACKAGES = ("attrs", "numba", "numpy", "simpy", "tokenizers", "torch")


def provenance() -> dict[str, Any]:
    """Facts about this run; None for what this machine does not say."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "sparda": sparda_core.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """CPU, cores this process may use, memory, system."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def busy_cores(sample_s: float = 0.5) -> float | None:
    """Cores that other programs keep busy just now; this one sleeps meanwhile. None where the system does not say."""
    before = _processor_time()
    time.sleep(sample_s)
    after = _processor_time()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1]) * (os.cpu_count() or 1)


def _processor_time() -> tuple[int, int] | None:
    """Busy and total time of all processors, in the system's ticks."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    ticks = [int(part) for part in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # the fourth is idle, the fifth waits for a disk


def commit() -> str | None:
    """Commit of the source tree, with `+` where it has changes; None for an installed package."""
    root = Path(sparda_core.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    head, changes = (_git(root, *args) for args in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    return None if head is None else head + ("+" if changes else "")


def _git(root: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args],  # noqa: S607  whichever git the user has
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _command() -> str:
    """The command line, without the folder that the program happens to lie in."""
    program = Path(sys.argv[0])
    name = "sparda" if program.name == "main.py" else program.name
    return shlex.join([name, *sys.argv[1:]])
