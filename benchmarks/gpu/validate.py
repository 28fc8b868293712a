"""Measure the cells of a validation on this GPU within a time: a few small ones first, then those of the list.

    python -m benchmarks.gpu.validate --seconds 300 --out DIR [--first CELLS.json] [--most-failed 2]

The small ones use every part of the measuring once (engines, block sizes, a second stream on the link, a timeline). If
more of them fail than allowed, nothing else is begun. Predictions are made afterwards, anywhere:
`sparda validate --predict-only --out DIR`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import attrs

from sparda_core.bench.validate.cell import K, ValidationCell
from sparda_core.bench.validate.folder import Run, read_run, write_run
from sparda_core.bench.validate.record import Record
from sparda_core.cli.main import main as sparda

#: Compared span by span: one load, with everything on the device, waiting, and prefetching.
TRACED = (
    "forecast resident b24 64K", "forecast sync b24 64K churn 10% lru x2", "forecast prefetch b24 64K churn 10% lru x2",
    "forecast prefetch b24 64K churn 10% last-selection x1",
)  # fmt: skip


def small_cells() -> tuple[Record, ...]:
    """Cells of a few GiB that use every part of the measuring."""
    usual = ValidationCell(selector="forecast", runtime="offload-prefetch", batch=4, context=32 * K)
    changes: tuple[dict[str, object], ...] = (
        {"ctas": 3}, {"background_gb_s": 10.0, "churn": 0.3}, {"engine": "copy-engine"},
        {"block": 256, "batch": 2, "context": 64 * K},
        {"selector": "random", "runtime": "offload-sync", "slots": 2.0, "policy": "lru"},
    )  # fmt: skip
    cells = (attrs.evolve(usual, **change) for change in changes)  # type: ignore[arg-type]
    return tuple(Record(cell=cell, tier="sweep", stratum="balanced") for cell in cells)


def measure(options: list[str]) -> tuple[Record, ...]:
    """Run the command; the records that it left."""
    code = sparda(["validate", "--measure-only", *options])
    out = Path(options[options.index("--out") + 1])
    sys.stderr.write(f"sparda validate: exit code {code}\n")
    return read_run(out / "validation.json").records if (out / "validation.json").exists() else ()


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="for everything; no cell is begun later")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--cells", type=Path, help="the list (default: the one shipped)")
    parser.add_argument("--most-failed", type=int, default=2, help="of the small cells")
    parser.add_argument("--round-steps", default="24")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    first = args.out / "first.json"
    write_run(first, Run(records=small_cells()))
    how = ["--rounds", "2", "--round-steps", "8", "--timelines", small_cells()[0].cell.key]
    small = measure(["--cells", str(first), "--out", str(args.out / "first"), *how])
    failed = [record for record in small if record.measured is None]
    for record in small:
        took = "-" if record.measured is None else f"{record.measured.step_s * 1e3:.3f} ms"
        sys.stderr.write(f"{record.cell.key}: {took} {record.refused or ''}\n")
    sys.stderr.write(f"{len(failed)} of {len(small)} small cells failed after {time.monotonic() - began:.0f} s\n")
    if not small or len(failed) > args.most_failed:
        return 1
    left = args.seconds - (time.monotonic() - began)
    cells = [] if args.cells is None else ["--cells", str(args.cells)]
    measure([
        "--out", str(args.out / "main"), "--round-steps", args.round_steps, "--limit-s", f"{max(1.0, left):.0f}",
        "--timelines", *TRACED, *cells,
    ])  # fmt: skip
    sys.stderr.write(f"all ended after {time.monotonic() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
