"""`sparda calibrate --device cuda`: measure this machine's GPU and its link, fit, write a profile. Loads torch late."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.running import Report, progress
from sparda_core.cli.screen import show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.files import check_place
from sparda_core.locks import locked
from sparda_core.simulator.gpu_fit.checks import Check, checks_of
from sparda_core.simulator.gpu_fit.fit import fit_gpu_profile
from sparda_core.simulator.gpu_fit.samples import SECTIONS, SampleFile, Samples, read_samples, samples_path
from sparda_core.simulator.profile_file import save_profile

if TYPE_CHECKING:
    from sparda_core.simulator.gpu import GpuProfile

#: What the two kinds of samples must have in common to be of one machine.
_SAME = ("name", "sms", "driver", "cuda", "torch", "triton")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda calibrate --device cuda`."""
    gpu = parser.add_argument_group("a GPU (--device cuda)")
    gpu.add_argument("--resume", action="store_true", help="keep the sections that the samples beside --out have")
    gpu.add_argument("--quick", action="store_true", help="fewer sizes and repetitions: a third of the time")
    gpu.add_argument(
        "--again", nargs="+", default=[], metavar="SECTION",
        help=f"with --resume: measure these sections again: {', '.join(SECTIONS)}",
    )  # fmt: skip


def calibrate_gpu(args: argparse.Namespace) -> int:
    """Measure what is missing, fit, write, and show the profile beside what it was fitted to."""
    out: Path = args.out or Path("gpu.toml")
    if out.suffix != ".toml":
        raise ConfigError(f"out={str(out)!r} must end in .toml")
    if args.again and not args.resume:
        raise ConfigError("--again is of --resume: without it every section is measured")
    for path in (out, samples_path(out)):
        check_place(path)
    with locked(out), progress() as report:
        samples = _samples(args, samples_path(out), report)
        profile = fit_gpu_profile(samples, name=out.stem, report=report)
        checks = checks_of(samples, profile)
    save_profile(profile, out)
    if args.json:
        show_json(_document(out, samples, profile, checks))
    else:
        _show(out, samples, profile, checks)
    return 0


def _samples(args: argparse.Namespace, path: Path, report: Report) -> Samples:
    """All sections: those that are kept, and those that are measured now. Measures nothing where none is missing."""
    kept = read_samples(path) if args.resume and path.exists() else None
    if kept is None and path.exists():
        raise ConfigError(f"{path} exists: --resume goes on with it, or name another --out")
    if kept is not None and not kept.missing and not args.again:
        return kept
    from sparda_core.bench.gpu_calibration.run import Measuring, identity_of
    from sparda_core.bench.gpu_calibration.sizes import full, quick
    from sparda_core.bench.gpu_clock import has_gpu
    from sparda_core.bench.provenance import provenance

    if not has_gpu():
        raise ConfigError("device='cuda': torch finds no CUDA device here; run this on the machine to be calibrated")
    sizes = quick() if args.quick else full()
    identity = {**identity_of(sizes), "quick": bool(args.quick)}
    file = SampleFile(path, identity, provenance())
    if kept is not None:
        _require_same(kept, identity, path)
        file.samples = kept
        file.drop(args.again)
    Measuring(sizes, report).run(file)
    return file.samples


def _require_same(kept: Samples, identity: dict[str, Any], path: Path) -> None:
    for name in _SAME:
        if kept.identity.get(name) != identity[name]:
            raise ConfigError(
                f"{path} was measured with {name}={kept.identity.get(name)!r}, here it is {identity[name]!r}: "
                "samples of two machines make no profile; name another --out"
            )
    if bool(kept.identity.get("quick")) != identity["quick"]:
        how, way_out = ("with", "add") if kept.identity.get("quick") else ("without", "leave out")
        raise ConfigError(
            f"{path} was measured {how} --quick, and this run is to go on otherwise: {way_out} --quick, or name "
            "another --out"
        )


def _document(out: Path, samples: Samples, profile: GpuProfile, checks: tuple[Check, ...]) -> dict[str, Any]:
    return {
        "file": out, "samples": samples_path(out), "digest": profile.digest, "profile": profile, "checks": checks,
        "seconds": samples.seconds,
    }  # fmt: skip


def _show(out: Path, samples: Samples, profile: GpuProfile, checks: tuple[Check, ...]) -> None:
    rows = [
        (check.what, check.unit, str(check.points), f"{check.median:.1%}", f"{check.worst:.1%}", check.where)
        for check in checks
    ]
    show_table(
        f"{profile.title}, {profile.date}: predicted against what was measured",
        ("what", "off by", "points", "median", "most", "where"), rows,
        notes=[f"Measured in {sum(samples.seconds.values()):.0f} s."],
    )  # fmt: skip
    sys.stdout.write(f"{out}: profile {profile.digest}; use it with `sparda predict --profile {out}`\n")
