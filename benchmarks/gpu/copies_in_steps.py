"""What the copies of real decode steps do: SM, clock and every round trip of each thread block, beside each kernel.

    python -m benchmarks.gpu.copies_in_steps --seconds 110 --out copies.json      without a GPU: nothing

Cells of the decode benchmark that prefetch, as they are measured there, with the copy kernel's log in its place. Of
each cell: step times with and without the log, logs of some steps, the copies alone, and one step's spans by the
profiler with the logs of that step. Host stores differ in size, from 40 to 110 GiB, and so
do the grids of attention.

Not run on a device yet. Expected, after `benchmarks/gpu/placement.py`: a turn beside attention takes 5 us at 16 and 64
rows and 10 and more at 24, 28 and 112, whatever the store.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Self

import attrs
import torch

from benchmarks.gpu.keep import keep
from benchmarks.gpu.logged_copy import WORDS, Log, logged_gather
from benchmarks.gpu.logged_lists import Copies, alone
from benchmarks.gpu.races import beside_kernels
from sparda_core.bench.decode.cell import Cell, K
from sparda_core.bench.decode.clock import Clock
from sparda_core.bench.decode.measure import Bench
from sparda_core.bench.decode.store import Settings
from sparda_core.bench.decode.timeline import graph_timeline
from sparda_core.bench.gpu_calibration.sizes import GIB, MIB, full
from sparda_core.errors import SpardaError
from sparda_core.kernels.inference import in_inference
from sparda_core.plan import Lane
from sparda_core.runtimes.gpu import engines
from sparda_core.runtimes.gpu.session import GpuSession

Row = dict[str, Any]
_USUAL: dict[str, Any] = {"selector": "forecast", "runtime": "offload-prefetch"}
#: The largest store last in the list, but the memory for it is pinned first.
CELLS = (
    Cell(batch=64, context=32 * K, **_USUAL), Cell(batch=28, context=128 * K, **_USUAL),
    Cell(batch=24, context=64 * K, **_USUAL), Cell(batch=16, context=128 * K, **_USUAL),
    Cell(batch=24, context=64 * K, ctas=1, **_USUAL), Cell(batch=24, context=64 * K, ctas=8, **_USUAL),
    Cell(batch=40, context=32 * K, churn=0.15, policy="lru", slots=2.0, **_USUAL),
    Cell(batch=112, context=32 * K, **_USUAL),
)  # fmt: skip
_WARM, _STEPS, _LOGGED = 6, 16, 3
#: Of a cell: by the host one by one, captured, alone, and one by one for the profiler.
_MOST_LAUNCHES = 640


class Logs:
    """Takes the place of the copy kernel: a log for every launch, in the order in which they are issued."""

    def __init__(self, device: torch.device, most_ctas: int = 8) -> None:
        self.logs: list[Log] = []
        # Beforehand: memory that a capture asked for would be the graph's, and cleared by it.
        self._room = torch.zeros(_MOST_LAUNCHES, most_ctas, WORDS, dtype=torch.int64, device=device)
        self._plain = engines.gather_blocks

    def __enter__(self) -> Self:
        engines.gather_blocks = self._gather  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        engines.gather_blocks = self._plain

    def _gather(
        self, source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
        count: torch.Tensor, *, ctas: int, in_flight_bytes: int, scales: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        assert scales is None, "a copy of codes has no log"
        words = self._room[len(self.logs)]
        self.logs.append(Log(ctas, in_flight_bytes, target.device, words))
        logged_gather(source, target, source_ids, target_ids, count, self.logs[-1])

    def clear(self) -> None:
        """Forget what ran; launches that were captured go on writing into theirs."""
        self._room.zero_()

    def told(self) -> list[Row]:
        """Logs of the launches that ran since `clear`, in the order in which they started."""
        told = [log.told() for log in self.logs]
        return sorted((one for one in told if min(one["sms"]) >= 0), key=lambda one: min(one["starts"]))


def steps_of(session: GpuSession) -> list[float]:
    """Seconds of some steps, after some that are not timed."""
    session.run(1, dict.fromkeys(session.rows, 1))
    for _ in range(_WARM - 1):
        session.run(1)
    return Clock(session).steps(_STEPS)


def logged_cell(bench: Bench, cell: Cell) -> Row:
    """Steps with the log in them."""
    with Logs(torch.device("cuda")) as logs, bench.filled(cell, bench.trace(cell)) as session:
        row: Row = {"cell": cell.key, "ctas": cell.ctas or 2, "logged_s": steps_of(session), "steps": []}
        block_bytes = 4 * session.spec.block * session.shape.head_dim
        for _ in range(_LOGGED):
            torch.cuda.synchronize()
            logs.clear()
            session.run(1)
            torch.cuda.synchronize()
            facts = session.last_facts()
            row["steps"].append({"copies": logs.told(), "misses": facts.misses.sum((1, 2)).tolist()})
        row["block_bytes"], row["host_bytes"] = block_bytes, session.machinery.capacity.host_bytes
        row["alone"] = _alone(session, logs)
        row["timeline"] = _timeline(session, logs)
    return row


def _alone(session: GpuSession, logs: Logs) -> list[Row]:
    """Logs of the last step's copies, one after the other, with nothing beside them."""
    table, lanes = session.machinery.table(), session.machinery.lanes
    kept = len(logs.logs)
    torch.cuda.synchronize()

    def issue() -> None:
        for op in session.plan.lane(Lane.H2D):
            table[op.kind](op)

    in_inference(lambda: lanes.step(issue))
    torch.cuda.synchronize()
    told = [log.told() for log in logs.logs[kept:]]
    del logs.logs[kept:]
    return told


def _timeline(session: GpuSession, logs: Logs) -> Row | None:
    """Spans of some steps by the profiler, and the logs of the last of them; None where they cannot be had."""
    torch.cuda.synchronize()
    captured = list(logs.logs)
    logs.clear()
    try:
        timeline = graph_timeline(session, steps=2)
    except SpardaError as wrong:
        sys.stderr.write(f"no timeline: {wrong}\n")
        return None
    logs.logs[:] = captured
    spans = [
        (span.name, str(span.lane), span.start_ns, span.end_ns) for span in timeline.spans if span.step == 1
    ]
    return {"spans": spans, "copies": logs.told()}


@attrs.frozen
class _Slab:
    """Pinned memory that is there, and slots, as a pool has them."""

    host: torch.Tensor
    slots: torch.Tensor
    device: torch.device


def by_range(memory: torch.Tensor) -> dict[str, list[Row]]:
    """Copies of lists over several ranges of one piece of memory: alone, and beside two kernels."""
    device, sizes = torch.device("cuda"), full()
    slab = _Slab(memory, torch.empty(512 * MIB, dtype=torch.uint8, device=device), device)
    copies = Copies(slab, torch.bfloat16)
    ranges = [size * GIB for size in (1, 4, 16, 32, 64, 104) if size * GIB <= memory.numel()]
    few = ((1, 128), (2, 128))
    return {
        "alone": alone(copies, few, ranges, sizes.beside_us),
        "beside kernels": beside_kernels(sizes, copies, (("attend", 64), ("down", 16)), few, ranges, repeats=2),
    }


def main() -> None:
    """Cell by cell; the file is whole after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True, help="no cell is begun later")
    parser.add_argument("--most-gib", type=float, default=120.0, help="leave out cells with a larger host store")
    parser.add_argument("--out", type=Path, help="where to keep what was measured (JSON)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    began = time.monotonic()
    settings = Settings(warmup=_WARM, steps=64, seed=0)
    cells = [cell for cell in CELLS if cell.batch * cell.context <= args.most_gib / 120 * 28 * 128 * K * 1.1]
    rows: list[Row] = []
    with Bench(settings, cells, report=lambda *_: None, tell=sys.stderr.write) as bench:
        bench.host_memory()
        print(f"{time.monotonic() - began:6.1f} s  host memory is pinned", flush=True)
        for cell in cells:
            if time.monotonic() - began > args.seconds:
                print(f"{cell.key}: not begun")
                continue
            row = logged_cell(bench, cell)
            rows.append(row)
            keep(args.out, "copies of decode steps, logged", rows)
            took = statistics.median(row["logged_s"])
            print(f"{time.monotonic() - began:6.1f} s  {cell.key}: {took * 1e3:.3f} ms a step with logs", flush=True)
        keep(args.out, "copies of decode steps, logged", rows, ranges=by_range(bench.host_memory()))
        print(f"{time.monotonic() - began:6.1f} s  ranges", flush=True)


if __name__ == "__main__":
    main()
