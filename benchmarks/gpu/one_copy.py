"""One copy kernel for a whole step against one a layer: 31 layers' lists, alone and beside decode GEMMs.

python -m benchmarks.gpu.one_copy [--pool-gib 16] [--json FILE]    without a GPU: the check alone, tiny, interpreted

A stand-in for a prefetching step of batch 16 at 10 % misses: in each layer some products, the list of the next layer
becomes known, the blocks of this layer are awaited, the other products. Lists are new in every replay.

Predicted before measuring: copies alone at 51 GB/s take 6.12 ms for 300 blocks of 32 KiB a layer (two thread blocks
of 128 KiB), to which each launch adds about 5 us and each step within one kernel about 2: 6.26 and 6.18 ms. Beside
GEMMs a copy by layer also waits for its event and for two multiprocessors, some 15 us a layer; one copy waits for
neither: step 6.9 and 6.5 ms where the link binds (300 blocks), equal within 2 % where it does not (100 blocks).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.gather import BLOCK, DEVICE, KIB, ON_GPU, D, Pool
from benchmarks.gpu.keep import keep
from sparda_core.bench.gpu_clock import between
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.kernels.gather.gpu_layers import await_layer, copy_layers
from sparda_core.kernels.tables import ARRIVED, COUNT, SIGNALS, LayerLists

del tests
LAYERS, PROGRAMS, ROOM = (31, 32, 3072) if ON_GPU else (3, 2, 4)
BLOCK_BYTES = 2 * BLOCK * D * 2


class Step:
    """Lists and slots of all layers over one pinned pool, and products of a layer between them."""

    def __init__(self, pool: Pool, blocks: int) -> None:
        self.pool, self.blocks = pool, blocks
        ids = torch.zeros(2, LAYERS, ROOM, dtype=torch.int32, device=DEVICE)
        self.lists = LayerLists(
            target=torch.zeros(LAYERS, ROOM, 2, BLOCK, D, dtype=torch.bfloat16, device=DEVICE),
            source_ids=ids[0], target_ids=ids[1],
            signals=torch.zeros(LAYERS, SIGNALS, dtype=torch.int32, device=DEVICE),
        )  # fmt: skip
        self.side = torch.cuda.Stream(priority=-1) if ON_GPU else None
        shapes = [(4096, 4096), (4096, 4096), (16384, 4096), (16384, 4096), (4096, 16384)] if ON_GPU else []
        self._x = {width: torch.randn(16, width, device=DEVICE).bfloat16() for width in (4096, 16384)}
        self._out = {width: torch.empty_like(x) for width, x in self._x.items()}
        # Those of 8 layers in turn: much more than the cache holds.
        self._weights = [
            [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for shape in shapes] for _ in range(8)
        ]  # fmt: skip

    def fresh(self) -> None:
        """New lists, whole; nothing has arrived yet."""
        self.lists.source_ids.random_(0, self.pool.blocks.shape[0])
        order = torch.rand(LAYERS, ROOM, device=DEVICE).argsort(1)
        self.lists.target_ids.copy_(order)
        self.lists.signals.zero_()
        self.lists.signals[:, COUNT] = self.blocks

    def check(self) -> None:
        """Raise AssertionError unless the last lists' blocks lie in their slots."""
        arrived = self.lists.target.flatten(2)[..., :2].contiguous().view(torch.int32)[..., 0]
        slots = self.lists.target_ids[:, : self.blocks].long()
        assert torch.equal(arrived.gather(1, slots), self.lists.source_ids[:, : self.blocks]), "other blocks arrived"

    def products(self, layer: int, part: slice) -> None:
        """Some of a layer's products."""
        for weight in self._weights[layer % 8][part]:
            torch.mm(self._x[weight.shape[1]], weight.T, out=self._out[weight.shape[0]])

    def copies(self) -> None:
        """The list of every layer, a launch each."""
        for layer in range(LAYERS):
            self.copy(layer)

    def copy(self, layer: int) -> None:
        """The list of one layer."""
        lists = self.lists
        count = lists.signals[layer, COUNT : COUNT + 1]
        gather_blocks(self.pool.blocks, lists.target[layer], lists.source_ids[layer], lists.target_ids[layer], count)

    def arrive(self, layer: int) -> None:
        """The list of a layer is whole: in place of its diff."""
        self.lists.signals[layer, ARRIVED : ARRIVED + 1].add_(PROGRAMS)

    def step(self, *, one: bool, copies: bool = True) -> None:
        """Products of every layer, with the copies on the other stream."""
        if self.side is None:
            return
        compute, side = torch.cuda.current_stream(), self.side
        copied: dict[int, torch.cuda.Event] = {}
        for layer in range(-1, LAYERS):
            self.products(layer, slice(2))
            if layer + 1 < LAYERS and copies:
                self.arrive(layer + 1)
                if not one or layer < 0:
                    side.wait_stream(compute)
                    with torch.cuda.stream(side):
                        if one:
                            copy_layers(self.pool.blocks, self.lists, programs=PROGRAMS)
                        else:
                            self.copy(layer + 1)
                    copied[layer + 1] = side.record_event()
            if layer >= 0 and copies:
                if one:
                    await_layer(self.lists, layer, ctas=2)
                else:
                    compute.wait_event(copied[layer])
            self.products(layer, slice(2, None))
        if copies:
            compute.wait_stream(side)


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of work whose kernels are loaded."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def load(step: Step) -> None:
    """Load every kernel: one copy must not be issued operation by operation."""
    step.fresh()
    step.step(one=False)
    copy_layers(step.pool.blocks, step.lists, programs=PROGRAMS, layers=0)
    await_layer(step.lists, 0, ctas=0)


def measure(pool: Pool, blocks: int) -> list[dict[str, object]]:
    """Milliseconds: medians over replays with lists of their own."""
    step = Step(pool, blocks)
    load(step)

    def all_known() -> None:
        step.lists.signals[:, ARRIVED] = PROGRAMS
        copy_layers(pool.blocks, step.lists, programs=PROGRAMS)

    works: dict[str, tuple[bool, Callable[[], None]]] = {
        "products": (False, lambda: step.step(one=False, copies=False)),
        "copies by layer": (True, step.copies),
        "one copy": (True, all_known),
        "step, by layer": (True, lambda: step.step(one=False)),
        "step, one copy": (True, lambda: step.step(one=True)),
    }
    rows: list[dict[str, object]] = []
    for name, (moves, work) in works.items():
        graph, times = captured(work), []
        for _ in range(25):
            step.fresh()
            torch.cuda.synchronize()
            times.append(between(graph.replay) / 1e3)
            if moves:
                step.check()
        took = statistics.median(times)
        rate = LAYERS * blocks * BLOCK_BYTES / took / 1e6 if moves else 0.0
        print(f"{blocks:4d} blocks a layer  {name:16s} {took:7.3f} ms  {rate:5.1f} GB/s", flush=True)
        rows.append({"blocks": blocks, "what": name, "ms": took, "gb_per_s": rate})
    return rows


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool-gib", type=float, default=16.0, help="pinned host memory; half a second a GiB to pin")
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    args = parser.parse_args()
    pool = Pool(int(args.pool_gib * 2**30) // 2**20 * 2**20, 16) if ON_GPU else Pool(8 * 32 * KIB, 4)
    if not ON_GPU:
        step = Step(pool, 3)
        step.fresh()
        for layer in range(LAYERS):
            step.arrive(layer)
        copy_layers(pool.blocks, step.lists, programs=PROGRAMS)
        step.check()
        print("one copy moves what is listed")
        return
    keep(args.json, "one copy for a step, and one a layer", [row for n in (300, 100) for row in measure(pool, n)])


if __name__ == "__main__":
    main()
