"""Measure on this GPU what copies cost whose list the host must see: parts of a running step, then whole cells.

    python -m benchmarks.gpu.host_lists --samples benchmarks/results/2026-11-30-calibration-h200.samples.json --out DIR

Sections `host lists` and `copy-engine` of a calibration are measured again into a copy of the samples, so that
`sparda calibrate --device cuda --resume --out DIR/h200.toml` fits them anywhere; then every cell of the shipped list
with such an engine, and some that no list has. Without --samples only cells are measured. Predictions are made
afterwards: `sparda validate --predict-only`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path

import attrs

from sparda_core.bench.gpu_calibration.run import Measuring, identity_of
from sparda_core.bench.gpu_calibration.sizes import full
from sparda_core.bench.provenance import provenance
from sparda_core.bench.validate.cell import K, ValidationCell
from sparda_core.bench.validate.folder import Run, shipped_cells, write_run
from sparda_core.bench.validate.record import Record
from sparda_core.cli.main import main as sparda
from sparda_core.simulator.gpu_fit.samples import SampleFile, read_samples
from sparda_core.simulator.launches import needs_host_list

AGAIN = ("host lists", "copy-engine")


def cells() -> list[Record]:
    """Those of the shipped list, then others that tell more of what overlaps."""
    shipped = [record for record in shipped_cells().records if needs_host_list(record.cell.engine)]
    usual = ValidationCell(
        selector="forecast", runtime="offload-prefetch", batch=24, context=64 * K, engine="copy-engine"
    )
    changes: tuple[dict[str, object], ...] = (
        {"churn": 0.05, "policy": "lru", "slots": 2.0}, {"runtime": "offload-sync"},
        {"engine": "cpu-gather", "runtime": "offload-sync"}, {"batch": 8, "context": 128 * K},
    )  # fmt: skip
    more = (attrs.evolve(usual, **change) for change in changes)  # type: ignore[arg-type]
    return [*shipped, *(Record(cell=cell, tier="sweep", stratum="balanced") for cell in more)]


def measure_parts(samples: Path, out: Path) -> None:
    """The two sections anew, beside what the samples have of the others."""
    kept, sizes = read_samples(samples), full()
    file = SampleFile(out / "h200.samples.json", {**identity_of(sizes), "quick": False}, provenance())
    for name, value in file.samples.identity.items():
        if kept.identity.get(name) != value:
            sys.stderr.write(f"note: {name} was {kept.identity.get(name)!r}, here it is {value!r}\n")
    file.samples = kept
    file.drop(AGAIN)
    Measuring(sizes, lambda what, done, total: None).run(file)
    for name in AGAIN:
        for row in file.samples.sections[name]:
            words = ", ".join(f"{key} {value}" for key, value in row.items() if key != "us")
            sys.stdout.write(f"{name}: {words}: {statistics.median(row['us']):.2f} us\n")


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, help="of a calibration of this GPU; without, parts are not measured")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--limit-s", default="60", help="no cell is begun after so many seconds of them")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.samples is not None:
        measure_parts(args.samples, args.out)
        sys.stderr.write(f"parts measured after {time.monotonic() - began:.0f} s\n")
        gc.collect()  # 32 GiB of pinned memory, before the cells pin theirs
    listed = args.out / "cells.json"
    write_run(listed, Run(records=cells()))
    code = sparda([
        "validate", "--measure-only", "--cells", str(listed), "--out", str(args.out / "cells"), "--round-steps", "24",
        "--limit-s", args.limit_s,
    ])  # fmt: skip
    sys.stderr.write(f"all ended after {time.monotonic() - began:.0f} s\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
