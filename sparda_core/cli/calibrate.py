"""`sparda calibrate`: measure this machine, write a profile that `sparda predict --profile FILE` reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.cli import calibrate_gpu
from sparda_core.cli.calibrate_locality import calibrate_locality
from sparda_core.cli.methods import found
from sparda_core.cli.options import POSITIVE, add_json, add_model, add_spec, add_text, spec_of
from sparda_core.cli.running import load, progress, read_document
from sparda_core.cli.screen import seconds, show_json, show_table
from sparda_core.cli.unused import refuse_unused
from sparda_core.errors import ConfigError
from sparda_core.files import check_place
from sparda_core.registry import SELECTORS
from sparda_core.shapes import BlockSpec

if TYPE_CHECKING:
    from sparda_core.models.model import Model
    from sparda_core.selector import Selector
    from sparda_core.simulator.cpu import CpuProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda calibrate`."""
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="what is measured: cpu (decoding), or cuda (a GPU)"
    )
    parser.add_argument(
        "--locality", type=Path, metavar="RECORDING",
        help="measure nothing: fit churn and reuse to a recording of `sparda record`, and write a locality",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="the profile to write (.toml; default: cpu.toml, gpu.toml), or the locality (default: locality.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--contexts", type=POSITIVE, nargs="+", default=[1024, 3072], metavar="TOKENS",
        help="cache lengths at which steps are measured, ascending",
    )  # fmt: skip
    parser.add_argument("--steps", type=POSITIVE, default=6, metavar="STEPS", help="measured steps at each of them")
    parser.add_argument(
        "--selectors", nargs="+", metavar="NAME",
        help="selectors whose operations are measured (default: every one that the model can run)",
    )  # fmt: skip
    calibrate_gpu.add_arguments(parser)
    add_spec(parser, BlockSpec(), of_model=True)
    add_text(parser)
    add_model(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, fit, write, and show what was fitted."""
    if args.locality is not None:
        refuse_unused(args, add_arguments, ("locality", "out"), where="--locality")
        return calibrate_locality(args.locality, args.out or Path("locality.toml"), as_json=args.json)
    if args.device == "cuda":
        refuse_unused(args, add_arguments, ("device", "out", "resume", "quick", "again"), where="--device cuda")
        return calibrate_gpu.calibrate_gpu(args)
    args.out = args.out or Path("cpu.toml")
    if args.device != "cpu":
        raise ConfigError(f"device={args.device!r} cannot be calibrated; known: cpu, cuda")
    if args.resume or args.quick or args.again:
        raise ConfigError("--resume, --quick and --again are of --device cuda: a CPU takes a minute, start again")
    if args.out.suffix != ".toml":
        raise ConfigError(f"out={str(args.out)!r} must end in .toml")
    check_place(args.out)
    model = load(args)

    from sparda_core.bench.calibrate_cpu import Calibration, calibrate_cpu
    from sparda_core.simulator.profile_file import save_profile

    plan = Calibration(
        selectors=selectors_of(model, args.selectors), contexts=tuple(args.contexts),
        spec=spec_of(args, model.config.block_spec), steps=args.steps,
    )  # fmt: skip
    reading = read_document(args, model, least=plan.tokens)
    with progress() as report:
        profile = calibrate_cpu(model.decoder, reading.tokens, plan, threads=args.threads, report=report)
    save_profile(profile, args.out)
    if args.json:
        show_json({"file": args.out, "digest": profile.digest, **_document(profile)})
        return 0
    columns = ("operation", "fixed", "grows with", "per unit", "slower beside a copy", "samples", "misfit")
    rows = [
        (key, seconds(c.fixed_s), c.driver, seconds(c.per_unit_s), f"{c.slowdown:.2f} x", c.samples, f"{c.error:.0%}")
        for key, c in sorted(profile.costs.items())
    ]
    show_table(f"{profile.title}, {profile.date}", columns, rows)
    sys.stdout.write(f"{args.out}: profile {profile.digest}; use it with `sparda predict --profile {args.out}`\n")
    return 0


def selectors_of(model: Model, names: list[str] | None) -> tuple[Selector, ...]:
    """Selectors by name, or all that need no options and nothing that the model lacks; the Forecast first."""
    from sparda_core.compose import make_selector

    if names is not None:
        return tuple(make_selector(model, name) for name in names)
    has = {"forecast"} if model.decoder.has_forecast else set()
    able = [make_selector(model, half.name) for half in found(SELECTORS) if half.made and half.made.needs <= has]
    return tuple(sorted(able, key=lambda selector: (selector.name != "forecast", selector.lead is None)))


def _document(profile: CpuProfile) -> dict[str, object]:
    return {
        "name": profile.name, "title": profile.title, "date": profile.date, "machine": profile.machine,
        "dispatch_s": profile.dispatch_s.value, "between_steps_s": profile.between_steps_s.value,
        "costs": profile.costs,
    }  # fmt: skip
