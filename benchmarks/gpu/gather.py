"""The copy kernel on fresh lists over a large pinned pool, alone and beside decode GEMMs.

python -m benchmarks.gpu.gather [--pool-gib 32] [--json FILE]      without a GPU: the check alone, tiny, interpreted

Every list is random and new, over the whole pool: a list that was copied before finds its address translations
warm and flatters some kernels. Blocks of 32 KiB are scattered to slots. Copies alone are timed in a CUDA graph of
four of them, whose lists are written anew before every replay; the same graph with empty lists is the floor, which
is printed and not subtracted. What copies cost products: `sparda_core/bench/gpu_calibration/beside.py`.

Seen on an H200: plain copies of 2 x 128 KiB 51 GB/s, 1 x 128 KiB 37.5, in parts less (warps that wait for nobody
overlap by themselves). Float8 with 8 bytes a load 20 GB/s a thread block, however cut: half of plain copies, as if
a multiprocessor had a number of loads on the way, not of bytes. Predicted with 16 bytes a load: 30 in 2 parts with one
thread block, 48 to 50 with two. Beside GEMMs at batch 16 / 64 / 256: 2 x 128 KiB 1.07 / 1.07 / 1.03
at 38 / 48 / 50 GB/s, 16 x 16 KiB 1.07 / 1.07 / 1.03 at 40 / 49 / 51, 8 x 128 KiB 1.26 / 1.30 / 1.94.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import attrs
import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_calibration.beside import Subject, beside
from sparda_core.bench.gpu_calibration.products import layers_of
from sparda_core.bench.gpu_calibration.sizes import full
from sparda_core.bench.gpu_clock import between, graph_of, median_us
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.runs import FLOAT8_TUNING, CopyTuning
from sparda_core.kernels.quantise.reference import dequantise_blocks, quantise_blocks
from sparda_core.simulator.gpu_fit.beside import PRODUCTS

DEVICE = tests.gpu_env.DEVICE
ON_GPU = DEVICE.type == "cuda"
BLOCK, D = 64, 128
KIB = 1024
#: Slowdown of the products that two thread blocks may cost by batch, and the GB/s that they must reach meanwhile.
BARS, LEAST_BESIDE = {16: 1.05, 64: 1.05, 256: 1.03}, 44.0


def host_memory(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], pinned where there is a GPU."""
    if not ON_GPU:
        return torch.zeros(nbytes, dtype=torch.uint8)
    from sparda_core.runtimes.gpu.pinning import pinned_empty

    return pinned_empty(nbytes, method="cuda-host-alloc")


@attrs.frozen(kw_only=True)
class Setting:
    """One way to copy; without a tuning, the shipped one."""

    ctas: int
    in_flight_kib: int
    float8: bool = False
    tuning: CopyTuning | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on the link."""
        return 2 * BLOCK * D * (1 if self.float8 else 2)

    @property
    def guess(self) -> float:
        """About its GB/s: bytes in flight over a round trip, until the link is full."""
        flight = self.in_flight_kib * KIB
        return min(50.0, self.ctas * flight / (2.1 + flight / 110e3) / 1e3 * (0.7 if self.float8 else 1.0))

    def row(self) -> dict[str, object]:
        """As kept."""
        tuning = self.tuning or (FLOAT8_TUNING if self.float8 else CopyTuning())
        return {
            "dtype": "float8" if self.float8 else "bfloat16", "ctas": self.ctas, "in_flight_kib": self.in_flight_kib,
            "parts": tuning.parts, "warps": tuning.warps, "warm": tuning.warm,
        }  # fmt: skip

    def __str__(self) -> str:
        row = self.row()
        how = f"parts {row['parts']} warps {row['warps'] or '-'} warm {row['warm'] or '-'}"
        return f"{row['dtype']:8s} {self.ctas:3d} x {self.in_flight_kib:3d} KiB  {how:28s}"


class Pool:
    """A pinned pool of blocks, slots to scatter them to, and lists that are never used twice."""

    def __init__(self, nbytes: int, most: int) -> None:
        self.blocks = host_memory(nbytes).view(torch.bfloat16).view(-1, 2, BLOCK, D)
        self.codes = self.blocks.view(torch.uint8).view(-1, 2, BLOCK, D)
        self.most = most
        self.slots = torch.empty(most, 2, BLOCK, D, dtype=torch.bfloat16, device=DEVICE)
        self.scales = torch.ones(self.codes.shape[0], 2, device=DEVICE)
        # Blocks carry their number: enough to tell which one arrived.
        self.blocks.view(torch.int32).flatten(1)[:, 0] = torch.arange(self.blocks.shape[0], dtype=torch.int32)

    def lists(self, blocks: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(source ids, slots, count) of a new random list over `blocks` blocks of the pool."""
        source = torch.randint(0, blocks, (count,), device=DEVICE, dtype=torch.int32)
        target = torch.randperm(self.most, device=DEVICE)[:count].int()
        return source, target, torch.full((1,), count, dtype=torch.int32, device=DEVICE)

    def copy(self, setting: Setting, count: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """A copy of `count` blocks, and what gives it a new list."""
        source = self.codes if setting.float8 else self.blocks
        source_ids, target_ids, length = self.lists(source.shape[0], count)

        def run() -> None:
            gather_blocks(
                source, self.slots, source_ids, target_ids, length, ctas=setting.ctas,
                in_flight_bytes=setting.in_flight_kib * KIB, scales=self.scales if setting.float8 else None,
                tuning=setting.tuning,
            )  # fmt: skip

        def renew() -> None:
            for old, new in zip((source_ids, target_ids), self.lists(source.shape[0], count), strict=False):
                old.copy_(new)

        return run, renew


def check(pool: Pool) -> None:
    """Raise AssertionError unless the listed blocks, and no others, arrive; float8 too."""
    count = min(pool.most, 200 if ON_GPU else 3)
    ways = [(2, 128, t) for t in tunings(float8=False)] if ON_GPU else [(2, 128, CopyTuning(parts=4))]
    for ctas, in_flight, tuning in (*ways, (16, 16, None), (1, 64, None)):
        pool.slots.fill_(0)
        source, target, length = pool.lists(pool.blocks.shape[0], count)
        gather_blocks(
            pool.blocks, pool.slots, source, target, length, ctas=ctas, in_flight_bytes=in_flight * KIB, tuning=tuning
        )
        arrived = pool.slots.view(torch.int32).flatten(1)
        want = torch.zeros_like(arrived)
        want[target.long()] = pool.blocks.view(torch.int32).flatten(1)[source.long().cpu()].to(DEVICE)
        assert torch.equal(arrived, want), f"{ctas} x {in_flight} KiB moved other bytes"
    codes, scales = quantise_blocks(torch.randn(count, 2, BLOCK, D))
    few = pool.codes[:count]
    kept = few.clone()
    few.copy_(codes)
    ids = torch.arange(count, dtype=torch.int32, device=DEVICE)
    dtype = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter's bfloat16 is wrong
    slots = torch.empty(count, 2, BLOCK, D, dtype=dtype, device=DEVICE)
    length = torch.full((1,), count, dtype=torch.int32, device=DEVICE)
    for tuning in (*(tunings(float8=True) if ON_GPU else ()), None):
        slots.fill_(float("nan"))
        gather_blocks(few, slots, ids, ids, length, scales=scales.to(DEVICE), tuning=tuning)
        assert torch.equal(slots.cpu(), dequantise_blocks(codes, scales, dtype)), f"float8 widened wrongly: {tuning}"
    few.copy_(kept)
    print("the copy kernel moves what is listed")


def alone(pool: Pool, setting: Setting) -> dict[str, object]:
    """GB/s up the link with nothing beside it: a graph of 4 copies of 64 MiB, median of replays with fresh lists."""
    count = min(pool.most, (64 << 20) // setting.block_bytes)
    copies = [pool.copy(setting, count) for _ in range(4)]
    graph, took = graph_of([run for run, _ in copies]), []
    for _ in range(5):
        for _, renew in copies:
            renew()
        torch.cuda.synchronize()
        took.append(between(graph.replay) / len(copies))
    rate = count * setting.block_bytes / statistics.median(took) / 1e3
    floor = median_us([pool.copy(setting, 0)[0]] * 4)
    say(f"alone   {setting}  {rate:6.1f} GB/s   an empty list {floor:5.1f} us")
    return {"what": "alone", **setting.row(), "gb_s": rate, "empty_us": floor}


def cost(pool: Pool, gemms: Subject, setting: Setting | None) -> dict[str, object]:
    """Slowdown of products, and GB/s beside them; without a setting, those of the copy engine."""
    rate = setting.guess if setting else 54.0
    nbytes = setting.block_bytes if setting else 4 * BLOCK * D
    count = min(pool.most, int(rate * 10e6) // nbytes) // 16 * 16  # about 10 ms

    def fresh(share: float) -> tuple[Callable[[], None], float]:
        some = max(16, int(count * share))
        if setting:
            return pool.copy(setting, some)[0], some * nbytes
        first = int(torch.randint(0, pool.blocks.shape[0] - some, ()))
        copy = pool.blocks[first : first + some]
        return lambda: void(pool.slots[:some].copy_(copy, non_blocking=True)), some * nbytes

    found = beside(gemms, fresh)
    none = {"dtype": "bfloat16", "ctas": 0, "in_flight_kib": 0, "parts": 0, "warps": 0, "warm": 0}
    row = setting.row() if setting else none
    what, note = str(setting) if setting else "copy engine", ""
    if setting and setting.ctas == 2 and setting.in_flight_kib == 128 and not setting.float8:
        met = found.slowdown <= BARS[gemms.batch] and found.gb_per_s >= LEAST_BESIDE
        note = f"bar {BARS[gemms.batch]} at {LEAST_BESIDE} GB/s {'met' if met else 'MISSED'}"
    say(
        f"beside  {what:58s} batch {gemms.batch:3d}  slowdown {found.slowdown:5.3f}"
        f"  {found.gb_per_s:5.1f} GB/s  (layer alone {(len(PRODUCTS) * found.launch_us):6.1f} us)  {note}"
    )
    return {
        "what": "beside", **row, "batch": gemms.batch, "slowdown": found.slowdown, "gb_s": found.gb_per_s,
        "alone_us_per_layer": (len(PRODUCTS) * found.launch_us),
    }  # fmt: skip


def say(line: str) -> None:
    """One line of the table, at once."""
    print(line, flush=True)


def void(_: object) -> None:
    """What a copy gives back is of no use."""


def tunings(*, float8: bool) -> list[CopyTuning]:
    """Ways to cut the registers."""
    ways = ((1, 32, 0), (2, 32, 0), (1, 16, 0), (4, 16, 0))
    if not float8:
        ways = ((1, 32, 0), (1, 32, 32 * KIB), (1, 32, 4 * KIB), (1, 32, 128), (2, 32, 0))
    return [CopyTuning(parts=parts, warps=warps, warm=warm) for parts, warps, warm in ways]


def measure(pool: Pool) -> list[dict[str, object]]:
    """Every row."""
    plain = [Setting(ctas=ctas, in_flight_kib=128, tuning=t) for t in tunings(float8=False) for ctas in (1, 2)]
    narrow = [
        Setting(ctas=ctas, in_flight_kib=128, float8=True, tuning=t) for t in tunings(float8=True) for ctas in (1, 2)
    ]
    others = [Setting(ctas=ctas, in_flight_kib=16) for ctas in (1, 2, 4, 16)]
    rows = [alone(pool, setting) for setting in [*plain, *narrow, *others]]
    steps = [Setting(ctas=c, in_flight_kib=kib) for kib in (128, 16) for c in (1, 2, 3, 4, 8, 16, 32)]
    for batch in BARS:
        gemms = layers_of(full(), batch, span_us=30_000.0)
        rows += [cost(pool, gemms, setting) for setting in (None, *steps, *plain[3::2], *narrow[1:4:2])]
    return rows


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool-gib", type=float, default=32.0, help="pinned host memory; half a second a GiB to pin")
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    pool = Pool(int(args.pool_gib * 2**30) // 2**20 * 2**20, 16384) if ON_GPU else Pool(8 * 32 * KIB, 4)
    check(pool)
    if not ON_GPU:
        return
    keep(args.json, "the copy kernel, alone and beside matrix products", measure(pool))


if __name__ == "__main__":
    main()
