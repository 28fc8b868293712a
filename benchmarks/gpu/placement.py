"""Where a copy's thread blocks sit beside decode products, and what that costs: SM and clock of every one of them.

    python -m benchmarks.gpu.placement --out placement.json        without a GPU: tiny, interpreted, no times

Three ways to start a copy: *late*, in the midst of one long graph of products, as a calibration measures it, at several
moments of a layer; *first*, before the graph; *forked*, in one graph, ready at the same moment as the next kernel of
the compute lane, as a decode step does it. Besides: which SMs the products leave, by thread blocks that take whatever
is free (a census), when each kernel begins and ends alone, and which SMs can hold one cluster.

Expected, and seen on an H200 (2026-11-30): late copies of three blocks cost a second wave where they arrived between
two products, and none where they arrived in the midst of one; forked ones always sit on the same SMs, as copies there
first do. Not expected: beside attention copies are slow only where they came late, or where it has three thread blocks
an SM.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

import tests.gpu_env  # decides whether Triton interprets, before it is imported
from benchmarks.gpu.cluster_map import clusters_of
from benchmarks.gpu.keep import keep
from benchmarks.gpu.logged_copy import census
from benchmarks.gpu.logged_lists import BLOCK_KIB, Copies, Few, Row, alone
from benchmarks.gpu.races import Race, beside_kernels, raced, weights_of
from sparda_core.bench.decode.timeline import profiled
from sparda_core.bench.gpu_calibration.beside import LATER, TIMES, Subject
from sparda_core.bench.gpu_calibration.forked import Forked, compute_of
from sparda_core.bench.gpu_calibration.pool import KIB, Pool, device_of
from sparda_core.bench.gpu_calibration.products import layers_of
from sparda_core.bench.gpu_calibration.sizes import GIB, MIB, Sizes, full
from sparda_core.bench.gpu_clock import Launch, finish, has_gpu
from sparda_core.shapes import BlockSpec, ModelShape

del tests
COPIES: tuple[Few, ...] = tuple(itertools.product((1, 2, 3, 4, 8, 16), (128, 16)))
FIRST: tuple[Few, ...] = ((2, 128), (3, 128), (4, 128), (3, 16), (8, 16))
#: Copies that are started at many moments, and those, in ticks of the clock: a layer takes some 130 us.
SCANNED: tuple[Few, ...] = ((3, 128), (3, 16), (2, 128))
MOMENTS = tuple(range(80_000, 340_000, 13_000))
FORKED: tuple[Few, ...] = ((1, 128), (2, 128), (3, 128), (4, 128), (8, 128), (3, 16), (16, 16))
PRODUCT_ROWS, DECODE_ROWS = (16, 64, 256), (16, 24, 64, 128)
#: A forked copy takes about so long alone, longer than the compute beside it.
FORKED_US = {"products": 260.0, "decode": 420.0}
#: Bytes of the pool that a list ranges over.
NARROW = GIB
#: Kernels one of which is repeated beside a copy, and rows; those, and copies, that lists of several ranges are for.
KERNELS = (
    ("attend", 16), ("attend", 64), ("down", 16), ("down", 64), ("gate up", 16), ("head", 16), ("score query", 64),
)  # fmt: skip
BESIDE_KERNELS: tuple[Few, ...] = ((1, 128), (2, 128), (8, 128))


def tiny() -> Sizes:
    """Enough to try the code by the interpreter."""
    shape = ModelShape(
        name="tiny", layers=2, hidden=32, ffn=64, q_heads=2, kv_heads=1, head_dim=128, vocab=64, context=512,
        tied_embeddings=True,
    )  # fmt: skip
    spec = BlockSpec(block=64, window=32, stride=16, sink=1, local=1, budget=4)
    return attrs.evolve(
        full(), shape=shape, spec=spec, context=512, dtype="float16", layers=1, launches=2, pool_bytes=4 * MIB,
        list_bytes=MIB // 4, beside_us=10.0,
    )  # fmt: skip


def beside_products(
    sizes: Sizes, copies: Copies, *, shrink: int, quick: bool, tell: Callable[[str], None]
) -> list[Row]:
    """Late, first, and late at many moments."""
    rows: list[Row] = []
    few = (lambda many: many[:1]) if quick else (lambda many: many)
    for tokens in few(PRODUCT_ROWS):
        subject = layers_of(sizes, tokens, shrink=shrink, span_us=TIMES * sizes.beside_us)
        race = Race(subject)
        cases = [(copy, False, LATER, 5) for copy in few(COPIES)] + [(copy, True, LATER, 3) for copy in few(FIRST)]
        cases += [(copy, False, moment, 2) for copy in few(SCANNED) for moment in few(MOMENTS)]
        for copy, first, later, repeats in cases:
            us = sizes.beside_us if later == LATER else sizes.beside_us / 2
            found = raced(race, copies, copy, us, repeats=1 if quick else repeats, first=first, later=later)
            rows += [{"rows": tokens, "ctas": copy[0], "kib": copy[1], "first": first, **row} for row in found]
        tell(f"beside products of {tokens} rows: {len(cases)} settings")
    return rows


def counted(sizes: Sizes, *, shrink: int, quick: bool) -> list[Row]:
    """Which SMs are free at some moments of a product, and when the others become so."""
    rows: list[Row] = []
    for tokens in PRODUCT_ROWS[:1] if quick else PRODUCT_ROWS:
        subject = layers_of(sizes, tokens, shrink=shrink, span_us=sizes.beside_us)
        race = Race(subject)
        blocks = 132 if has_gpu() else 2
        out = torch.zeros(blocks, 2, dtype=torch.int64, device=device_of())
        run = functools.partial(census, out, 150_000 if has_gpu() else 1)
        run()
        for later in MOMENTS[:1] if quick else MOMENTS[::4]:
            out.zero_()
            told = race.run(run, later=later)
            found = sorted(out.tolist())
            rows.append({
                "rows": tokens, "later": later, "begin_us": told["begin_us"], "graph_ns": told["graph_ns"],
                "taken": [(when, sm) for when, sm in found],
            })  # fmt: skip
    return rows


def layer_launches(sizes: Sizes, kind: str, rows: int, *, shrink: int) -> Sequence[Sequence[Launch]]:
    """What the compute lane does in each of some layers, beside a copy."""
    if kind == "decode":
        return compute_of(attrs.evolve(sizes, forked_layers=sizes.layers), "layer", rows, weights_of(sizes)).layers
    launches = list(layers_of(sizes, rows, shrink=shrink).graph.launches)
    each = len(launches) // sizes.layers
    return [launches[at * each : (at + 1) * each] for at in range(sizes.layers)]


def forked(sizes: Sizes, copies: Copies, kind: str, rows: int, *, shrink: int, quick: bool) -> list[Row]:
    """Replays of layers without and with copies of each kind beside them."""
    layers = layer_launches(sizes, kind, rows, shrink=shrink)
    bare, table = Forked(layers, None), []
    for _ in range(1 if quick else 4):
        compute_us, _ = bare.replay()
        table.append({"kind": kind, "rows": rows, "ctas": 0, "kib": 0, "compute_us": compute_us, "copies": []})
    cases: list[tuple[Few, int | None]] = [(copy, None) for copy in FORKED]
    if kind == "decode":
        cases += [((1, 128), NARROW), ((2, 128), NARROW)]
    for copy, range_bytes in cases[:1] if quick else cases:
        count = copies.blocks(copy, FORKED_US[kind] if has_gpu() else 1.0)
        made = [copies.made(copy, count, range_bytes=range_bytes) for _ in layers]
        step = Forked(layers, [run for run, _, _ in made])
        for _ in range(1 if quick else 3):
            for _, renew, _ in made:
                renew()
            finish()
            compute_us, copy_us = step.replay()
            table.append({
                "kind": kind, "rows": rows, "ctas": copy[0], "kib": copy[1], "range_bytes": range_bytes,
                "bytes": count * BLOCK_KIB * KIB, "compute_us": compute_us, "copy_us": copy_us,
                "copies": [log.told(every=1 if copy[1] > 16 else 16) for _, _, log in made],
            })  # fmt: skip
    return table


def spans_of(subject: Subject) -> list[tuple[str, int, int]]:
    """Name, start and end of each kernel of a graph with nothing beside it, nanoseconds."""
    profiled(lambda: None)  # the profiler's own start takes its time once
    ran = sorted(profiled(subject.graph.replay), key=lambda one: one.start_ns)
    return [(one.name[:60], one.start_ns - ran[0].start_ns, one.end_ns - ran[0].start_ns) for one in ran]


def summary(found: dict[str, list[Row]]) -> list[str]:
    """A few lines to look at."""
    lines = []
    table: dict[tuple[Any, ...], list[Row]] = {}
    for row in found["beside products"]:
        if row["later"] == LATER:
            table.setdefault((row["rows"], row["ctas"], row["kib"], row["first"]), []).append(row)
    for (rows, ctas, kib, first), some in table.items():
        slow = " ".join(f"{row['slowdown']:.3f}" for row in some if row["slowdown"])
        tpcs = " ".join(str(len({sm // 2 for sm in row["sms"]})) for row in some)
        rate = statistics.median(row["gb_s"] for row in some)
        how = "first" if first else "late "
        lines.append(f"{rows:3d} rows {ctas:2d} x {kib:3d} KiB {how} {slow}  TPCs {tpcs}  {rate:5.1f} GB/s")
    return lines


def measure(sizes: Sizes, pool: Pool, out: Path | None, *, shrink: int, quick: bool) -> dict[str, list[Row]]:
    """Everything, kept after each part: what comes last may fail."""
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    copies = Copies(pool, getattr(torch, sizes.dtype))
    copies.check()
    tell("the logged copy moves what is listed")
    found: dict[str, list[Row]] = {}
    parts: dict[str, Callable[[], list[Row]]] = {
        "beside products": lambda: beside_products(sizes, copies, shrink=shrink, quick=quick, tell=tell),
        "census": lambda: counted(sizes, shrink=shrink, quick=quick),
        "forked products": lambda: [
            row for rows in (PRODUCT_ROWS[:1] if quick else PRODUCT_ROWS)
            for row in forked(sizes, copies, "products", rows, shrink=shrink, quick=quick)
        ],
        "beside kernels": lambda: beside_kernels(
            sizes, copies, KERNELS[:1] if quick else KERNELS, BESIDE_KERNELS[:1] if quick else BESIDE_KERNELS, (None,)
        ),
        "alone": lambda: alone(copies, BESIDE_KERNELS[:2], (None,) if quick else (None, NARROW), sizes.beside_us),
        "forked decode": lambda: [
            row for rows in (DECODE_ROWS[:1] if quick else DECODE_ROWS)
            for row in forked(sizes, copies, "decode", rows, shrink=shrink, quick=quick)
        ],
        "spans": lambda: [
            {"rows": rows, "spans": spans_of(layers_of(sizes, rows, shrink=shrink))}
            for rows in (PRODUCT_ROWS if has_gpu() else ())
        ],
        "clusters": lambda: clusters_of(device_of()),
    }  # fmt: skip
    for name, part in parts.items():
        found[name] = part()
        tell(name)
        keep(out, "placement of copies beside products", found)
    return found


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool-gib", type=float, default=8.0, help="pinned host memory; half a second a GiB to pin")
    parser.add_argument("--out", type=Path, help="where to keep what was measured (JSON)")
    args = parser.parse_args()
    sizes = full() if has_gpu() else tiny()
    nbytes = int(args.pool_gib * GIB) // MIB * MIB if has_gpu() else sizes.pool_bytes
    pool = Pool(nbytes, 768 * MIB if has_gpu() else MIB)
    found = measure(sizes, pool, args.out, shrink=1 if has_gpu() else 256, quick=not has_gpu())
    for line in summary(found):
        print(line)


if __name__ == "__main__":
    main()
