"""`sparda timeline` on this machine: some steps measured with spans, and the same steps predicted from their facts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparda_core.cli.running import GIGA, combine, link_bytes_per_s, load, progress, read_document
from sparda_core.cli.timeline import leave
from sparda_core.simulator.observe import traced
from sparda_core.trace import Origin, TraceSource

if TYPE_CHECKING:
    from sparda_core.cli.running import Report
    from sparda_core.compose import Combination, Measurement
    from sparda_core.models.model import Model
    from sparda_core.simulator.profile import Profile

#: Steps before those that are traced; and tokens that calibrating takes after the last context.
WARMUP, CALIBRATED = 4, 8


def run_measured(args: argparse.Namespace) -> int:
    """Measure some steps with spans, predict the same steps from their facts, write both."""
    model = load(args)
    pair = combine(args, model, link_bytes_per_s=link_bytes_per_s(args))
    reading = read_document(args, model, least=max(args.steps + WARMUP, CALIBRATED) + 1)
    with progress() as report:
        profile = _profile(args, model, pair, reading.tokens, report)
        measured = _measure(args, pair, reading.tokens, report)
    real, predicted = _sources(pair, measured, profile)
    link = "no limit" if args.link_gb_s is None else f"an emulated link of {args.link_gb_s} GB/s"
    leave(
        args, {"measured": [real], "predicted": [predicted], "both": [real, predicted]},
        title=f"{pair.selector.name} x {pair.runtime.name} after {len(reading.tokens)} tokens, {link}",
        told={"link_gb_s": args.link_gb_s, "text": reading.name},
        notes=["Recording spans costs a little: step times are quoted from `sparda compare`."],
    )  # fmt: skip
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


def _sources(pair: Combination, measured: Measurement, profile: Profile) -> tuple[TraceSource, TraceSource]:
    from sparda_core.bench.provenance import machine
    from sparda_core.bench.timelines import join_steps

    real = join_steps("measured", measured.timelines)
    got = pair.predict(profile, facts=measured.facts)
    return (
        TraceSource(timeline=real, plan=pair.plan(), origin=Origin.MEASURED, notes={"machine": machine()}),
        traced(got, label=f"predicted ({profile.name})"),
    )
