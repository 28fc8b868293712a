"""The machine itself: what it reports, the ceilings of its memories and of its products."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparda_core.bench.gpu_calibration.pool import device_of
from sparda_core.bench.gpu_calibration.sizes import MIB, Sizes
from sparda_core.bench.gpu_clock import between, has_gpu

Row = dict[str, Any]
#: What nvidia-smi is asked for.
_ASKED = {"memory_mib": "memory.total", "pcie_generation": "pcie.link.gen.max", "pcie_lanes": "pcie.link.width.max"}


def reported() -> Row:
    """Numbers of nvidia-smi, whole; None for one that it does not say."""
    told: Row = dict.fromkeys(_ASKED)
    asked = ["nvidia-smi", f"--query-gpu={','.join(_ASKED.values())}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return told
    line = found.splitlines()[0] if found.strip() else ""
    values = [part.strip() for part in line.split(",")]
    for name, value in zip(_ASKED, values, strict=False):
        told[name] = int(value) if value.isdigit() else None
    return told


def host_mib() -> int | None:
    """Memory of the host, whole MiB; None where the system does not say."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    first = table.read_text(encoding="ascii").splitlines()[0]
    return int(first.split()[1]) // 1024


def measure(sizes: Sizes) -> list[Row]:
    """One row: the machine, a copy within device memory, a large product, copies of the host."""
    device, dtype = device_of(), getattr(torch, sizes.dtype)
    about = torch.cuda.get_device_properties(0) if has_gpu() else None
    halves = torch.zeros(2, sizes.device_bytes, dtype=torch.uint8, device=device)
    copied = _times(lambda: halves[0].copy_(halves[1]), sizes.repeats)
    side = sizes.square
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    multiplied = _times(lambda: torch.mm(a, b, out=out), 4 * sizes.repeats)
    return [{
        "what": "machine", **reported(), "host_mib": host_mib(),
        "sms": about.multi_processor_count if about else os.cpu_count(),
        "device_copy_bytes_per_s": [2 * sizes.device_bytes / s for s in copied],
        "product_flop_per_s": [2 * side**3 / s for s in multiplied],
        "host_copy_bytes_per_s": _host_copies(sizes),
    }]  # fmt: skip


def _times(work: Callable[[], object], count: int) -> list[float]:
    """Seconds of each, after one that does not count."""
    work()
    return [between(work) / 1e6 for _ in range(count)]


def _host_copies(sizes: Sizes) -> list[float]:
    """Bytes a second read + written by copies of as many threads as there are cores, at most 16."""
    threads = max(1, min(16, os.cpu_count() or 1))
    copies = HostCopies(threads, min(64 * MIB, sizes.device_bytes // threads))
    return [copies.nbytes / copies.once() for _ in range(sizes.repeats)]


class HostCopies:
    """Copies within host memory: so many threads at once, each `each` bytes twice. nbytes: read + written by all."""

    def __init__(self, threads: int, each: int) -> None:
        self._pairs = [(np.ones(each, np.uint8), np.zeros(each, np.uint8)) for _ in range(threads)]
        self.nbytes = 2 * 2 * each * threads

    def once(self) -> float:
        """Seconds until all threads are done that began together."""
        start = threading.Barrier(len(self._pairs) + 1)
        workers = [threading.Thread(target=self._copy, args=(start, pair)) for pair in self._pairs]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began

    @staticmethod
    def _copy(start: threading.Barrier, pair: tuple[Any, Any]) -> None:
        start.wait()
        for _ in range(2):
            np.copyto(pair[1], pair[0])
