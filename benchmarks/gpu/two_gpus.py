"""Do GPUs of one host slow each other's copies? Two processes, each with a GPU and a pinned pool, alone and together.

    python -m benchmarks.gpu.two_gpus --out two-gpus.json        without a GPU: tiny, interpreted, no times

Each kind of traffic (`shared_host.py`) runs in one process while the other waits, in the other, and in both at once;
then copies of one GPU beside what the host does for the other. Only what began and ended while both were at work
counts, by the host's clock, which the processes share; the lists of every gather are new. Beside it stands what the
simulator says of one GPU and of two with a profile, by which they share `memory.host_bytes_per_s`.

Seen on two H200 of one host (2026-11-30, benchmarks/results/2026-11-30-two-gpus-h200.json): no copy is slower beside
the other GPU's but those of both ways on both, 39 GB/s each way for 50.6. The profile of that day had said 36 together
for 55 alone, since it took what 16 threads copied, 73 GB/s, for what host memory gives. That file holds what was said.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from benchmarks.gpu.shared_host import CASES, FULL, MIXED, TINY, Bench, Case, predicted_gb_s
from sparda_core.bench.gpu_clock import has_gpu
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.profile_file import load_profile

del tests
GPUS = 2
#: What each process does in a turn; None: it waits.
Turn = tuple[Case | None, ...]
Row = dict[str, Any]
#: One repetition: (begin, end) by the host's clock, bytes, seconds.
Told = tuple[float, float, float, float]
#: Seconds that a process waits for the other: pinning and compiling differ.
PATIENCE_S = 120.0


def turns() -> list[Turn]:
    """Each case in one process, in the other, in both; then what differs."""
    found: list[Turn] = [turn for case in CASES for turn in ((case, None), (None, case), (case, case))]
    return [*found, *MIXED]


def work(rank: int, seconds: float, barrier: Any, out: str) -> None:
    """One process: every turn in step with the other; writes (begin, end, bytes, seconds) of each repetition."""
    if has_gpu():
        torch.cuda.set_device(rank)
    bench = Bench(FULL if has_gpu() else TINY)
    told: list[list[Told]] = []
    ready: dict[Case, Any] = {}
    for turn in turns():
        case = turn[rank]
        if case is not None and case not in ready:
            # One at a time: graphs of gathers hold lists, host copies hold memory.
            ready = {case: bench.made(case)}
            ready[case]()
        barrier.wait(PATIENCE_S)
        told.append(repeated(ready[case], seconds) if case is not None else [])
        barrier.wait(PATIENCE_S)
    Path(out, f"{rank}.json").write_text(json.dumps(told))


def repeated(once: Any, seconds: float) -> list[Told]:
    """As often as fits into so many seconds, three times at least."""
    found, start = list[Told](), time.perf_counter()
    while len(found) < 3 or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        nbytes, took = once()
        found.append((began, time.perf_counter(), nbytes, took))
    return found


def rates(told: list[list[Told]]) -> list[float | None]:
    """Median GB/s of each process over what began and ended while all that had work were at it; None without."""
    busy = [one for one in told if one]
    since, until = max(one[0][0] for one in busy), min(one[-1][1] for one in busy)
    counted = [
        [nbytes / took / 1e9 for began, ended, nbytes, took in one if since <= began and ended <= until] for one in told
    ]
    return [statistics.median(one) if one else None for one in counted]


def measure(seconds: float) -> list[Row]:
    """Start both processes; a row a turn."""
    barrier = multiprocessing.get_context("spawn").Barrier(GPUS)
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (seconds, barrier, folder), nprocs=GPUS)  # type: ignore[no-untyped-call]
        told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(GPUS)]
    rows = []
    for turn, *own in zip(turns(), *told, strict=True):
        rows.append({
            "does": [None if case is None else str(case) for case in turn], "gb_s": rates(own),
            "repetitions": [[nbytes / took / 1e9 for _, _, nbytes, took in one] for one in own],
        })  # fmt: skip
    return rows


def add_predictions(rows: list[Row], profile: GpuProfile) -> None:
    """`predicted_gb_s` of each process, where all that have work do the same."""
    for turn, row in zip(turns(), rows, strict=True):
        busy = [case for case in turn if case is not None]
        said = predicted_gb_s(busy[0], profile, len(busy)) if len(set(busy)) == 1 else None
        row["predicted_gb_s"] = [None if case is None else said for case in turn]


def topology() -> dict[str, Any]:
    """How GPUs, processors and memory hang together, as the system tells it."""
    asked = _told("nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader") or ""
    buses = [line.split(",")[1].strip().lower()[-12:] for line in asked.splitlines() if "," in line]
    nodes = [Path("/sys/bus/pci/devices", bus, "numa_node") for bus in buses]
    online = Path("/sys/devices/system/node/online")
    return {
        "nvidia-smi topo -m": _told("nvidia-smi", "topo", "-m"),
        "numa_node_of_gpu": [int(path.read_text()) if path.exists() else None for path in nodes],
        "numa_nodes": online.read_text().strip() if online.exists() else None,
        "lscpu": [line for line in (_told("lscpu") or "").splitlines() if "NUMA" in line or "Socket" in line],
    }  # fmt: skip


def _told(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def show(rows: list[Row]) -> None:
    """The table: GB/s of each process, each way for copies both ways, and what the simulator says."""
    print(f"{'GPU 0 does':26}{'GPU 1 does':26}{'GB/s 0':>9}{'GB/s 1':>9}{'said, each':>12}")
    for row in rows:
        said = next((one for one in row["predicted_gb_s"] if one is not None), None)
        words = "".join(f"{one or '-':26}" for one in row["does"])
        print(words + "".join("        -" if one is None else f"{one:9.1f}" for one in row["gb_s"])
              + ("           -" if said is None else f"{said:12.1f}"))  # fmt: skip


def main() -> None:
    """Try without two GPUs, else measure, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to keep the rows, JSON")
    parser.add_argument("--profile", default="h200", help="by which the simulator predicts (default h200)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each turn")
    args = parser.parse_args()
    if has_gpu() and torch.cuda.device_count() < GPUS:
        parser.error(f"this machine has {torch.cuda.device_count()} CUDA device; two_gpus needs {GPUS} of one host")
    profile = load_profile(args.profile)
    if not isinstance(profile, GpuProfile):
        parser.error(f"--profile {args.profile} is of a {profile.device}; name a GPU's")
    began = time.perf_counter()
    rows = measure(args.seconds if has_gpu() else 0.0)
    add_predictions(rows, profile)
    if not has_gpu():
        print(f"{len(rows)} turns of two processes: what is listed arrives; no GPU, nothing to time")
        return
    show(rows)
    about = topology()
    print(f"NUMA nodes {about['numa_nodes']}, of the GPUs {about['numa_node_of_gpu']}")
    print(about["nvidia-smi topo -m"], f"{time.perf_counter() - began:.0f} s in all", flush=True)
    keep(args.out, "copies of two GPUs of one host, alone and together", rows, topology=about, profile=profile.name)


if __name__ == "__main__":
    main()
