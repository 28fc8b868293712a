"""`sparda timeline`: one combination, measured and predicted, as traces for the Perfetto viewer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sparda_core.cli.options import POSITIVE, add_combination, add_json, add_link, add_model, add_spec, add_text
from sparda_core.cli.running import GIGA, combine, link_bytes_per_s, load, progress, read_document
from sparda_core.cli.screen import seconds, show_json, show_table
from sparda_core.files import make_folder
from sparda_core.plan import Lane
from sparda_core.shapes import BlockSpec
from sparda_core.spans import exposed_wait_ns
from sparda_core.trace import TraceSource, write_trace

if TYPE_CHECKING:
    from sparda_core.cli.running import Report
    from sparda_core.compose import Combination, Measurement
    from sparda_core.models.model import Model
    from sparda_core.simulator.profile import Profile

#: Steps before those that are traced; and tokens that calibrating takes after the last context.
WARMUP, CALIBRATED = 4, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda timeline`."""
    parser.add_argument(
        "--out", type=Path, default=Path("sparda-traces"), metavar="DIR",
        help="folder for measured.json, predicted.json and both.json",
    )  # fmt: skip
    parser.add_argument("--steps", type=POSITIVE, default=4, metavar="STEPS", help="decode steps in a trace")
    parser.add_argument("--batch", type=POSITIVE, default=1, metavar="ROWS", help="rows decoded together")
    parser.add_argument(
        "--profile", metavar="FILE",
        help="profile of this machine, as `sparda calibrate` writes it (default: calibrate now, some seconds)",
    )  # fmt: skip
    add_combination(parser, selector="forecast", runtime="offload-prefetch")
    add_link(parser)
    add_spec(parser, BlockSpec())
    add_text(parser)
    add_model(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure some steps with spans, predict the same steps from their facts, write both."""
    folder = make_folder(args.out)
    model = load(args)
    pair = combine(args, model, link_bytes_per_s=link_bytes_per_s(args))
    reading = read_document(args, model, least=max(args.steps + WARMUP, CALIBRATED) + 1)
    with progress() as report:
        profile = _profile(args, model, pair, reading.tokens, report)
        measured = _measure(args, pair, reading.tokens, report)
    sources = _sources(pair, measured, profile)
    files = {"measured": sources[:1], "predicted": sources[1:], "both": sources}
    written = {name: folder / f"{name}.json" for name in files}
    for name, file in written.items():
        write_trace(file, files[name])
    figures = {source.timeline.label: _figures(source, args.steps) for source in sources}
    if args.json:
        show_json({"files": written, "link_gb_s": args.link_gb_s, "text": reading.name, "timelines": figures})
        return 0
    columns = ("timeline", "step", "compute busy", "transfer", "exposed wait")
    link = "no limit" if args.link_gb_s is None else f"an emulated link of {args.link_gb_s} GB/s"
    show_table(
        f"{pair.selector.name} x {pair.runtime.name} after {len(reading.tokens)} tokens, {link}; mean of a step",
        columns, [(label, *map(seconds, f.values())) for label, f in figures.items()],
        notes=["Recording spans costs a little: step times are quoted from `sparda compare`."],
    )  # fmt: skip
    sys.stdout.write(f"Open {written['both']} at https://ui.perfetto.dev\n")
    return 0


def _profile(
    args: argparse.Namespace, model: Model, pair: Combination, tokens: tuple[int, ...], report: Report
) -> Profile:
    if args.profile is not None:
        from sparda_core.simulator.profile_file import load_profile

        profile: Profile = load_profile(args.profile)
    else:
        from sparda_core.bench.calibrate_cpu import Calibration, calibrate_cpu

        plan = Calibration(contexts=(len(tokens) - CALIBRATED,), selectors=(pair.selector,), spec=pair.spec)
        profile = calibrate_cpu(model.decoder, tokens, plan, threads=args.threads, report=report)
    return profile if args.link_gb_s is None else profile.with_link(args.link_gb_s * GIGA)


def _measure(args: argparse.Namespace, pair: Combination, tokens: tuple[int, ...], report: Report) -> Measurement:
    at = len(tokens) - args.steps - WARMUP
    total = args.steps + WARMUP
    return pair.measure(
        list(tokens[:at]), tokens[at:], batch=args.batch, warmup=WARMUP, timeline=True,
        progress=lambda done: report("measuring", done, total),
    )  # fmt: skip


def _sources(pair: Combination, measured: Measurement, profile: Profile) -> list[TraceSource]:
    from sparda_core.bench.timelines import join_steps

    plan, real = pair.plan(), join_steps("measured", measured.timelines)
    predicted = attrs.evolve(pair.predict(profile, facts=measured.facts).timeline, label=f"predicted ({profile.name})")
    return [TraceSource(timeline=real, plan=plan), TraceSource(timeline=predicted, plan=plan)]


def _figures(source: TraceSource, steps: int) -> dict[str, float]:
    timeline = source.timeline
    per_step = 1e9 * steps
    return {
        "step_s": timeline.duration_ns / per_step,
        "compute_s": timeline.busy_ns(Lane.COMPUTE) / per_step,
        "transfer_s": timeline.busy_ns(Lane.H2D) / per_step,
        "exposed_s": sum(exposed_wait_ns(timeline, source.plan).values()) / per_step,
    }
