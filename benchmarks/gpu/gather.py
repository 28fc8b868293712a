"""The copy kernel on fresh lists over a large pinned pool, alone and beside decode GEMMs.

python -m benchmarks.gpu.gather [--pool-gib 32] [--json FILE]      without a GPU: the check alone, tiny, interpreted

Every list is random and new, over the whole pool: a list that was copied before finds its address translations
warm and flatters some kernels. Blocks of 32 KiB are scattered to slots.

Predicted before measuring (from trials of such kernels on an H200): 2 x 128 KiB 50 to 51 GB/s, 1 x 128 KiB 38 to 45,
16 x 16 KiB 50, 2 x 16 KiB 20 to 32; float8 2 x 128 KiB 45 to 50 (conversion is not hidden within a thread block).
Beside GEMMs at batch 16 / 64 / 256: 2 x 128 KiB 1.04 / 1.04 / 1.02 at 44 to 50 GB/s, 16 x 16 KiB 1.17 / 1.23 / 1.7.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.clock import between, graph_of
from benchmarks.gpu.keep import keep
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.quantise.reference import dequantise_blocks, quantise_blocks

DEVICE = tests.gpu_env.DEVICE
ON_GPU = DEVICE.type == "cuda"
BLOCK, D = 64, 128
KIB = 1024


def host_memory(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], pinned where there is a GPU."""
    if not ON_GPU:
        return torch.zeros(nbytes, dtype=torch.uint8)
    from sparda_core.runtimes.gpu.pinning import pinned_empty

    return pinned_empty(nbytes, method="cuda-host-alloc")


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

    def copies(self, count: int, *, ctas: int, in_flight: int, float8: bool = False) -> Iterator[Callable[[], None]]:
        """Copies of `count` blocks, each of a list of its own."""
        source = self.codes if float8 else self.blocks
        while True:
            source_ids, target_ids, length = self.lists(source.shape[0], count)
            yield lambda s=source_ids, t=target_ids, n=length: gather_blocks(
                source, self.slots, s, t, n, ctas=ctas, in_flight_bytes=in_flight,
                scales=self.scales if float8 else None,
            )  # fmt: skip


def check(pool: Pool) -> None:
    """Raise AssertionError unless the listed blocks, and no others, arrive; float8 too."""
    count = min(pool.most, 200 if ON_GPU else 3)
    for ctas, in_flight in ((2, 128), (16, 16), (1, 64)):
        pool.slots.fill_(0)
        source, target, length = pool.lists(pool.blocks.shape[0], count)
        gather_blocks(pool.blocks, pool.slots, source, target, length, ctas=ctas, in_flight_bytes=in_flight * KIB)
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
    gather_blocks(few, slots, ids, ids, length, scales=scales.to(DEVICE))
    assert torch.equal(slots.cpu(), dequantise_blocks(codes, scales, dtype)), "float8 blocks were widened wrongly"
    few.copy_(kept)
    print("the copy kernel moves what is listed")


def alone(pool: Pool, *, ctas: int, in_flight: int, float8: bool) -> dict[str, object]:
    """GB/s up the link with nothing beside it: median of launches of 64 MiB each."""
    nbytes = BLOCK * D * 2 * (1 if float8 else 2)
    count = (64 << 20) // nbytes
    copies = pool.copies(count, ctas=ctas, in_flight=in_flight * KIB, float8=float8)
    between(next(copies))  # compiles
    took = statistics.median(between(next(copies)) for _ in range(9))
    empty = pool.copies(0, ctas=ctas, in_flight=in_flight * KIB, float8=float8)
    short = statistics.median(between(next(empty)) for _ in range(9))
    print(
        f"alone   {'fp8' if float8 else 'bf16'} {ctas:3d} x {in_flight:3d} KiB  {count * nbytes / took / 1e3:6.1f} GB/s"
        f"   empty list {short:6.1f} us", flush=True,
    )  # fmt: skip
    return {
        "what": "alone", "dtype": "fp8" if float8 else "bf16", "ctas": ctas, "in_flight_kib": in_flight,
        "gb_per_s": count * nbytes / took / 1e3, "empty_us": short,
    }  # fmt: skip


@attrs.frozen
class Gemms:
    """A graph of 8 layers of decode GEMMs of an 8B model in bf16."""

    graph: torch.cuda.CUDAGraph

    @classmethod
    def of(cls, batch: int) -> Gemms:
        """For a batch: 4096-4096 twice, 4096-16384 twice, 16384-4096, weights of their own in each layer."""
        shapes = [(4096, 4096), (4096, 4096), (16384, 4096), (16384, 4096), (4096, 16384)]
        x = {width: torch.randn(batch, width, device=DEVICE).bfloat16() for width in (4096, 16384)}
        weights = [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(8) for shape in shapes]
        outs = {width: torch.empty_like(x[width]) for width in x}
        return cls(
            graph_of([lambda w=w: torch.mm(x[w.shape[1]], w.T, out=outs[w.shape[0]]) for w in weights])
        )  # fmt: skip


def beside(
    pool: Pool, batch: int, gemms: Gemms, name: str, copy: Callable[[int], Callable[[], None]]
) -> dict[str, object]:
    """Slowdown of the GEMMs while a copy runs (pairs alone, contended in turn), and the copy's GB/s while they do."""
    lane = torch.cuda.Stream(priority=-1)
    block = 2 * BLOCK * D * 2

    def contended() -> float:
        work = copy(pool.most)  # outlasts the graph
        torch.cuda.synchronize()
        with torch.cuda.stream(lane):
            work()
        took = between(gemms.graph.replay)
        torch.cuda.synchronize()
        return took

    def speed() -> float:
        work = copy(2048)
        torch.cuda.synchronize()
        for _ in range(3):
            gemms.graph.replay()
        with torch.cuda.stream(lane):
            took = between(work, lane)
        torch.cuda.synchronize()
        return 2048 * block / took / 1e3

    contended()
    pairs = [(between(gemms.graph.replay), contended()) for _ in range(13)]
    slowdown = statistics.median(with_copy / without for without, with_copy in pairs)
    layer = statistics.median(without for without, _ in pairs) / 8
    rate = statistics.median(speed() for _ in range(7))
    print(
        f"beside  batch {batch:3d}  {name:14s} slowdown {slowdown:5.3f}  {rate:5.1f} GB/s"
        f"  (layer alone {layer:6.1f} us)", flush=True,
    )  # fmt: skip
    return {"what": "beside", "batch": batch, "copy": name, "slowdown": slowdown, "gb_per_s": rate, "layer_us": layer}


def by_engine(pool: Pool) -> Callable[[int], Callable[[], None]]:
    """The control: the copy engine, one contiguous run."""

    def copy(count: int) -> Callable[[], None]:
        first = int(torch.randint(0, pool.blocks.shape[0] - count, ()))
        return lambda: pool.slots[:count].copy_(pool.blocks[first : first + count], non_blocking=True)

    return copy


def by_kernel(pool: Pool, ctas: int, in_flight: int) -> Callable[[int], Callable[[], None]]:
    """Our kernel, a fresh list each time."""
    return lambda count: next(pool.copies(count, ctas=ctas, in_flight=in_flight * KIB))


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool-gib", type=float, default=32.0, help="pinned host memory; half a second a GiB to pin")
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    pool = Pool(int(args.pool_gib * 2**30) // 2**20 * 2**20, 12288) if ON_GPU else Pool(8 * 32 * KIB, 4)
    check(pool)
    if not ON_GPU:
        return
    rows = [
        alone(pool, ctas=ctas, in_flight=in_flight, float8=False)
        for in_flight in (128, 64, 16) for ctas in (1, 2, 3, 4, 16)
    ]  # fmt: skip
    settings = ((1, 128), (2, 128), (2, 64), (4, 64))
    rows += [alone(pool, ctas=ctas, in_flight=in_flight, float8=True) for ctas, in_flight in settings]
    copies = {
        "copy engine": by_engine(pool), "2 x 128 KiB": by_kernel(pool, 2, 128), "16 x 16 KiB": by_kernel(pool, 16, 16)
    }  # fmt: skip
    for batch in (16, 64, 256):
        gemms = Gemms.of(batch)
        rows += [beside(pool, batch, gemms, name, copy) for name, copy in copies.items()]
    keep(args.json, "the copy kernel, alone and beside matrix products", rows)


if __name__ == "__main__":
    main()
