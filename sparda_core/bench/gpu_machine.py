"""Which GPU, with which driver and libraries. Loads torch."""

from __future__ import annotations

import subprocess
from typing import Any

import torch


def gpu() -> dict[str, Any] | None:
    """Name, memory, SMs, driver, CUDA, torch and Triton of the first CUDA device; None where there is none.

    host_threads  of torch on the host (OMP_NUM_THREADS): as many gather for engine `cpu-gather`
    """
    if not torch.cuda.is_available():
        return None
    import triton

    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name, "memory_bytes": about.total_memory, "sms": about.multi_processor_count,
        "capability": f"{about.major}.{about.minor}", "driver": _driver(), "cuda": torch.version.cuda,
        "torch": torch.__version__, "triton": triton.__version__, "host_threads": torch.get_num_threads(),
    }  # fmt: skip


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.splitlines()[0].strip() if found.stdout.strip() else None
