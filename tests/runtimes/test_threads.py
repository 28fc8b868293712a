"""Threads that a user gave torch stay as many when numba starts its own."""

from __future__ import annotations

import os
import subprocess
import sys

START = "from sparda_core.runtimes.threads import start_numba; start_numba()"
NUMBA = "import numba; numba.get_num_threads()"


def threads_after(act: str) -> int:
    """Torch's threads in a process of its own that was given one, and has done `act`."""
    told = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3", "NUMBA_THREADING_LAYER": "omp"}
    command = [sys.executable, "-c", f"import torch; {act}; print(torch.get_num_threads())"]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


def test_torch_keeps_its_threads_where_numba_alone_would_change_them() -> None:
    assert threads_after("pass") == 1
    assert threads_after(NUMBA) > 1
    assert threads_after(START) == 1


def test_a_session_keeps_them() -> None:
    opened = (
        "from sparda_core.compose import compose; from sparda_core.models.tiny import tiny_model; "
        "compose(tiny_model(), 'window', 'resident').open().close()"
    )
    assert threads_after(opened) == 1
