"""How host memory is best pinned: seconds to pin and free it, bytes it really takes, and how fast it is read in place.

    python -m benchmarks.gpu.pinning --gib 12 --json benchmarks/results/pinning.json
    python -m benchmarks.gpu.pinning --check        # the correctness part alone; all there is without a GPU

Gathers copy 2,048 blocks of 32 KiB (64 MiB) by a list that was never copied before. "first" is the first touch of
the memory by this process: a virtual machine may have to fetch it from its host, whatever the method, so every method
is timed after that.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tests.gpu_env  # noqa: F401  decides whether Triton interprets, before it is imported
from benchmarks.gpu.keep import keep
from sparda_core.kernels.gather.gpu import gather_blocks
from sparda_core.runtimes.gpu.alias import as_words, on_device
from sparda_core.runtimes.gpu.mapping import Mapping
from sparda_core.runtimes.gpu.pinning import METHODS, pinned_empty

GIB = 1 << 30
BLOCK = (2, 64, 128)  # K and V, tokens, values of 2 bytes: 32 KiB
BLOCK_BYTES = 2 * 64 * 128 * 2
LIST = 2048
COPIES = {"2 x 128 KiB": (2, 128 << 10), "16 x 16 KiB": (16, 16 << 10)}


def check(method: str, device: torch.device, *, blocks: int = 200, shape: tuple[int, ...] = BLOCK) -> None:
    """A pinned pool is read by the copy kernel, read and written through its device view, and read by the host."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    size = blocks * torch.Size(shape).numel() * 2
    memory = pinned_empty(size, method=method, chunk_bytes=2 << 20)
    pool = memory.view(dtype).view(blocks, *shape)
    pool.copy_(torch.randn(pool.shape).to(dtype))
    ids = torch.randperm(blocks)[: blocks // 2].to(device, torch.int32)
    target = torch.full_like(pool, float("nan"), device=device)
    count = torch.tensor([len(ids)], dtype=torch.int32, device=device)
    gather_blocks(pool, target, ids, ids, count)
    shown = on_device(memory, device).view(dtype).view(pool.shape)
    flat = as_words(shown.view(blocks, -1))
    read = flat.index_select(0, ids.long()).view(dtype).view(-1, *shape)
    wanted = pool[ids.long().cpu()]
    assert torch.equal(target[ids.long()].cpu(), wanted), f"{method}: the copy kernel read something else"
    assert torch.equal(read.cpu(), wanted), f"{method}: the device view shows something else"
    flat.index_copy_(0, ids.long(), as_words((read * 2).view(len(ids), -1)))
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(pool[ids.long().cpu()], wanted * 2), f"{method}: a write of the device did not reach the host"


def used_bytes() -> int:
    """Memory in use on this machine."""
    pairs = (line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    table = {name: int(value.split()[0]) * 1024 for name, value in pairs}
    return table["MemTotal"] - table["MemAvailable"]


def huge_bytes() -> int:
    """Bytes of this process that lie in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages"))


def median_ms(launches: list[Callable[[], object]]) -> float:
    """Median time of callables that launch work, each run once, on the current stream."""
    spans: list[float] = []
    for launch in launches:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        spans.append(start.elapsed_time(stop))
    return statistics.median(spans)


def speeds(memory: torch.Tensor, device: torch.device) -> dict[str, float]:
    """GB/s by what is done with the pool. No list of a gather is used twice."""
    pool = memory.view(torch.bfloat16).view(-1, *BLOCK)
    target = torch.empty(LIST, *BLOCK, dtype=torch.bfloat16, device=device)
    targets = torch.randperm(LIST, device=device).int()
    count = torch.full((1,), LIST, dtype=torch.int32, device=device)
    order = torch.randperm(pool.shape[0])
    lists = [order[at : at + LIST].to(device).int() for at in range(0, len(order) - LIST, LIST)][:48]
    words = as_words(on_device(memory, device).view(torch.bfloat16).view(pool.shape[0], -1))
    blocks = as_words(target.view(LIST, -1))

    def gather(knobs: tuple[int, int], ids: torch.Tensor) -> None:
        gather_blocks(pool, target, ids, targets, count, ctas=knobs[0], in_flight_bytes=knobs[1])

    share, told = len(lists) // len(COPIES), {}
    for i, (name, knobs) in enumerate(COPIES.items()):
        warm, *mine = lists[i * share : (i + 1) * share]
        gather(knobs, warm)
        told[f"gather {name}, GB/s"] = median_ms([functools.partial(gather, knobs, ids) for ids in mine])
    wide = [ids.long() for ids in lists[:8]]
    told["indexed read, GB/s"] = median_ms([functools.partial(words.index_select, 0, ids) for ids in wide])
    told["indexed write, GB/s"] = median_ms([functools.partial(words.index_copy_, 0, ids, blocks) for ids in wide])
    return {name: LIST * BLOCK_BYTES / 1e6 / took for name, took in told.items()}


def measure(method: str, size: int, device: torch.device, *, threads: int) -> dict[str, Any]:
    """One row of the table."""
    before, start = used_bytes(), time.perf_counter()
    memory = pinned_empty(size, method=method, threads=threads)
    pinned_s, taken = time.perf_counter() - start, used_bytes() - before
    row = {
        "method": method, "threads": threads, "GiB": size / GIB, "s per GiB": pinned_s / (size / GIB),
        "taken / asked": taken / size, "in huge pages": huge_bytes() / size, **speeds(memory, device),
    }  # fmt: skip
    start = time.perf_counter()
    del memory
    gc.collect()
    row["freed in s"] = time.perf_counter() - start
    row["left after freeing / asked"] = (used_bytes() - before) / size
    return row


def first_touch(size: int) -> float:
    """Seconds per GiB to touch fresh memory that nobody pins."""
    mapping, start = Mapping(size), time.perf_counter()
    mapping.touch(0, size, 8)
    took = time.perf_counter() - start
    mapping.close()
    return took / (size / GIB)


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, a method a column."""
    for name in rows[0]:
        values = (row[name] if isinstance(row[name], str) else f"{row[name]:.3g}" for row in rows)
        print(f"{name:28}" + "".join(f"{value:>18}" for value in values))


def main(arguments: list[str]) -> None:
    """Check every method, then time it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12.0, help="pool; larger than any cache of translations")
    parser.add_argument("--check", action="store_true", help="check only; without a GPU at a tiny size")
    parser.add_argument("--json", help="where to keep the rows")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        check("plain", torch.device("cpu"), blocks=6, shape=(2, 4, 8))
        print("plain memory, interpreted: right")
        return
    device = torch.device("cuda", torch.cuda.current_device())
    for method in METHODS[:3]:
        check(method, device)
    print("all methods: right")
    if given.check:
        return
    size = int(given.gib * GIB) // BLOCK_BYTES * BLOCK_BYTES
    print(f"{torch.cuda.get_device_name()}, {given.gib:g} GiB; first touch {first_touch(size):.3f} s per GiB")
    cases = [("cuda-host-alloc", 8), ("register-4k", 8), ("register-4k", 1), ("register-huge", 8)]
    rows = [measure(method, size, device, threads=threads) for method, threads in cases]
    show(rows)
    keep(given.json, "ways to pin host memory", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
