"""Some sections of `sparda calibrate --device cuda` by themselves, into a file of samples that no profile is fitted to.

    python -m benchmarks.gpu.section forked --out forked.samples.json

For a look at one section, or to put it in place of the one that a file of samples has. Needs a GPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from sparda_core.bench.gpu_calibration import forked
from sparda_core.bench.gpu_calibration.run import Measuring, identity_of
from sparda_core.bench.gpu_calibration.sizes import full, quick
from sparda_core.bench.gpu_clock import has_gpu
from sparda_core.bench.provenance import provenance
from sparda_core.simulator.gpu_fit.samples import SECTIONS, SampleFile


def main() -> None:
    """Measure them, keep each when it is done, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--out", type=Path, required=True, help="samples are kept here (JSON)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    args = parser.parse_args()
    if not has_gpu():
        print("no CUDA device: nothing to measure")
        return
    began, sizes = time.monotonic(), quick() if args.quick else full()
    kept = SampleFile(args.out, identity_of(sizes), provenance())

    def told(what: str, done: int, total: int) -> None:
        if done in (1, total) or done % 16 == 0:
            print(f"{time.monotonic() - began:6.1f} s  {what}: {done} of {total}", flush=True)

    Measuring(sizes, told).run(kept, args.sections)
    for name in args.sections:
        print(f"{name}: {len(kept.samples.rows(name))} rows in {kept.samples.seconds[name]:.0f} s")
    if "forked" in args.sections:
        print("\n".join(forked.summary(kept.samples.rows("forked"))))


if __name__ == "__main__":
    main()
