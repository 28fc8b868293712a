"""Ways to bring a list of misses to the host in mid-step, in the steps that a calibration times.

    python -m benchmarks.gpu.list_ways --out FILE.json

- *copies*: the host issues three small copies on a lane of their own, behind a mark, and waits for a mark behind them;
- *mark*, the runtime's: a kernel writes the list into the host's memory, the host waits for a mark behind the piece;
- *flag*: the kernel writes a number behind the list, released to the system, and the host looks until it is there.

A list is told in every layer and nothing or some hundred blocks are moved, awaited at once or a layer later. Then, by
the runtime's way, host gathers with as many threads of torch as --threads names.
"""

# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import torch
import triton
import triton.language as tl

from sparda_core.bench.gpu_calibration.host_lists import settle
from sparda_core.bench.gpu_calibration.host_steps import HostSteps, TimedStreams
from sparda_core.bench.gpu_calibration.pool import Pool
from sparda_core.bench.gpu_calibration.sizes import GIB, full
from sparda_core.bench.gpu_machine import gpu
from sparda_core.bench.provenance import provenance
from sparda_core.errors import LaneError
from sparda_core.files import write_whole
from sparda_core.kernels.tables import DeviceDiff
from sparda_core.plan import Lane, Op
from sparda_core.runtimes.gpu.engines import CopyEngine, CpuGather, HostListEngine
from sparda_core.runtimes.gpu.lanes import Lanes

#: Times that a host looks at a flag before it asks the device what is wrong: about a second.
LOOKS = 10_000_000
BLOCKS = (0, 460)
TILE = 1024


@triton.jit(do_not_specialize=["most"])
def _flag_kernel(count, source, target, told_count, told_source, told_target, flag, turn, most, TILE: tl.constexpr):
    blocks = tl.load(count)
    tl.store(told_count, blocks)
    for start in range(0, tl.minimum(blocks, most), TILE):
        at = start + tl.arange(0, TILE)
        listed = at < tl.minimum(blocks, most)
        tl.store(told_source + at, tl.load(source + at, mask=listed), mask=listed)
        tl.store(told_target + at, tl.load(target + at, mask=listed), mask=listed)
    now = tl.load(turn) + 1
    tl.debug_barrier()  # the list is written, by all threads; all have read the turn
    tl.store(turn, now)
    # Every thread says the same, each behind all that it has seen written.
    tl.inline_asm_elementwise(
        "st.release.sys.global.u32 [$1], $2; mov.u32 $0, $2;", "=r,l,r", [flag, now], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@attrs.define(eq=False)
class Told:
    """One layer's list, and where the host reads it. `turn` counts on the device, `heard` on the host."""

    diff: DeviceDiff
    count: torch.Tensor
    ids: torch.Tensor
    flag: torch.Tensor
    turn: torch.Tensor
    heard: int = 0


class Ways(TimedStreams):
    """Streams that bring lists by copies, or that look for flags."""

    def __init__(self, device: torch.device, heard: list[float], *, flags: bool) -> None:
        super().__init__(device, heard)
        self._down, self._flags = torch.cuda.Stream(device), flags  # type: ignore[no-untyped-call]
        self.lists: dict[str, Told] = {}
        self._came: dict[str, torch.cuda.Event] = {}

    def mark(self, lane: Lane, name: str) -> None:
        """Behind a list, ask for it by copies; nothing where a flag tells."""
        told = self.lists.get(name)
        if told is None:
            super().mark(lane, name)
        elif not self._flags:
            super().mark(lane, name)
            self._ask(told, name)

    def _ask(self, told: Told, name: str) -> None:
        if name not in self._came:
            self._came[name] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._down.wait_event(self._events[name])
        most = told.diff.source.numel()
        with torch.cuda.stream(self._down):
            told.count.copy_(told.diff.count, non_blocking=True)
            told.ids[0, :most].copy_(told.diff.source, non_blocking=True)
            told.ids[1, :most].copy_(told.diff.target, non_blocking=True)
            self._came[name].record()

    def hear(self, name: str) -> None:
        """Wait for the list, by its way."""
        began = time.perf_counter()
        if self._flags:
            self._look(self.lists[name], name)
        else:
            self.wait(Lane.H2D, name)
            self._came[name].synchronize()
        self._heard.append(time.perf_counter() - began)

    def _look(self, told: Told, name: str) -> None:
        told.heard += 1
        flag, wanted = told.flag.numpy(), told.heard
        for _ in range(LOOKS):
            if flag[0] == wanted:
                return
        torch.cuda.synchronize()
        raise LaneError(f"{name}: flag {int(flag[0])} after {LOOKS} looks, {wanted} was awaited")


class OtherSteps(HostSteps):
    """The calibration's steps, but for how lists come."""

    flags = False

    def _made_lanes(self) -> Lanes:
        return Ways(self._pool.device, self.heard, flags=self.flags)

    def _tell(self, op: Op) -> None:
        assert isinstance(self._lanes, Ways)
        told, name = self._told(op), f"list of {op.name}"
        self._lanes.lists[name] = told
        if self.flags:
            diff = told.diff
            _flag_kernel[(1,)](
                diff.count, diff.source, diff.target, told.count, told.ids[0], told.ids[1], told.flag, told.turn,
                diff.source.numel(), TILE=TILE, num_warps=8,
            )  # fmt: skip

    def _told(self, op: Op) -> Told:
        assert isinstance(self._lanes, Ways)
        known = self._lanes.lists.get(f"list of {op.name}")
        if known is not None:
            return known
        diff = self._tiers[op.layer].diff
        assert diff is not None
        count, ids = self._engine._list(diff)._there  # noqa: SLF001  the same memory that the runtime reads
        return Told(
            diff, count, ids, torch.zeros(1, dtype=torch.int32, pin_memory=True),
            torch.zeros(1, dtype=torch.int32, device=self._pool.device),
        )  # fmt: skip


class FlagSteps(OtherSteps):
    """By flags."""

    flags = True


WAYS: dict[str, type[HostSteps]] = {"copies": OtherSteps, "mark": HostSteps, "flag": FlagSteps}


def rows_of(
    pool: Pool, way: str, engine: type[HostListEngine], blocks: int, steps: int, *, early: bool
) -> dict[str, Any]:
    """Medians of some steps, microseconds a layer: whole, and of the host: list, move, rest."""
    steps_by = WAYS[way](full(), pool, engine(), blocks, early=early)
    try:
        found: dict[str, list[float]] = {"layer": [], "list": [], "move": [], "rest": []}
        for _ in range(steps):
            us, issued = steps_by.step()
            heard, moved = (statistics.fmean(part) * 1e6 for part in (steps_by.heard, steps_by.moved))
            for name, value in (
                ("layer", us / steps_by.layers), ("list", heard), ("move", moved),
                ("rest", issued * 1e6 / steps_by.layers - heard - moved),
            ):  # fmt: skip
                found[name].append(value)
        steps_by.check()
    finally:
        steps_by.close()
    order = "prefetch" if early else "sync"
    return {
        "way": way, "engine": engine.name, "order": order, "blocks": blocks, "steps": steps,
        "threads": torch.get_num_threads(), "us": found,
    }  # fmt: skip


def tell(row: dict[str, Any]) -> None:
    """A line on the screen."""
    told = ", ".join(f"{name} {statistics.median(us):6.1f}" for name, us in row["us"].items())
    words = f"{row['engine']} {row['order']} {row['blocks']:4d} {row['way']:7s} {row['threads']:3d} threads"
    sys.stdout.write(f"{words}, us: {told}\n")


def whole_row(pool: Pool, steps: int) -> dict[str, Any]:
    """The same kernels as one graph, without lists."""
    whole = HostSteps(full(), pool, CopyEngine(), 0, early=False, copies=False)
    try:
        us = [whole.step()[0] / whole.layers for _ in range(steps)]
    finally:
        whole.close()
    sys.stdout.write(f"one graph: {statistics.median(us):.1f} us a layer\n")
    return {"way": "one graph", "blocks": 0, "steps": steps, "us": {"layer": us}}


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON")
    parser.add_argument("--gib", type=int, default=8, help="pinned memory that lists lie in")
    parser.add_argument("--steps", type=int, default=15, help="of each row")
    parser.add_argument("--rounds", type=int, default=1, help="the ways in turn, so often")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 4, 8, 12, 16], help="of host gathers")
    args = parser.parse_args(argv)
    pool = Pool(args.gib * GIB, 2 * GIB)
    settle(full(), pool)
    rows = [whole_row(pool, args.steps)]
    for number in range(args.rounds):
        for engine in (CopyEngine, CpuGather):
            for early in (False, True):
                for blocks in BLOCKS if engine is CopyEngine else BLOCKS[:1]:
                    for way in WAYS:
                        row = rows_of(pool, way, engine, blocks, args.steps, early=early)
                        rows.append({"round": number, **row})
                        tell(row)
    for threads in args.threads:
        torch.set_num_threads(threads)
        for early in (False, True):
            rows.append(rows_of(pool, "mark", CpuGather, BLOCKS[-1], args.steps, early=early))
            tell(rows[-1])
    write_whole(args.out, json.dumps({"gpu": gpu(), "provenance": provenance(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
