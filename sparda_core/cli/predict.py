"""`sparda predict`: how long a decode step takes on a machine, from its profile alone. Loads no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core import __version__
from sparda_core.cli.options import (
    POSITIVE,
    add_combination,
    add_json,
    add_link,
    add_shape,
    add_spec,
    runtime_options,
    selector_options,
    spec_of,
)
from sparda_core.cli.parser import number
from sparda_core.cli.screen import seconds, show_json, show_table, size
from sparda_core.compose import compose
from sparda_core.plan import StepPlan
from sparda_core.shapes import BlockSpec, named_shape
from sparda_core.trace import TraceSource, write_trace

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction
    from sparda_core.simulator.profile import Profile

#: How the 8B shape is cut in the paper's efficiency runs: one sink block, 32 + 1 local ones, 96 in all.
DEFAULT_SPEC = BlockSpec(sink=1, local=32, budget=96)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda predict`."""
    add_shape(parser, default="minicpm4.1-8b")
    parser.add_argument("--profile", default="h200", metavar="NAME|FILE", help="the machine; see `sparda profile list`")
    add_combination(parser, selector="forecast", runtime="offload-prefetch")
    parser.add_argument(
        "--engine", metavar="NAME",
        help="how blocks move: uva, copy-engine or cpu-gather on a GPU, thread on a CPU (default: the first of these)",
    )  # fmt: skip
    load = parser.add_argument_group("load")
    load.add_argument("--batch", type=POSITIVE, default=8, metavar="ROWS", help="sequences decoded together")
    load.add_argument("--context", type=POSITIVE, default=131072, metavar="TOKENS", help="tokens in each row's cache")
    load.add_argument(
        "--churn", type=number(float, least=0, most=1), default=0.03, metavar="SHARE",
        help="share of a selection that has to be moved, 0 to 1",
    )  # fmt: skip
    load.add_argument(
        "--value-bytes", type=number(float, least=0.5, most=8), metavar="BYTES",
        help="bytes of a weight, a key and a value (default: 2 on a GPU, 4 on a CPU)",
    )  # fmt: skip
    add_link(parser, help="another speed of the host link, 1e9 bytes a second (default: the profile's)")
    add_spec(parser, DEFAULT_SPEC)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write the predicted timeline as a trace")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Predict, print, and write the trace if one was asked for."""
    from sparda_core.simulator.profile_file import load_profile

    profile: Profile = load_profile(args.profile)
    if args.link_gb_s is not None:
        profile = profile.with_link(args.link_gb_s * 1e9)
    engine = args.engine or profile.engines[0]
    pair = compose(
        named_shape(args.shape), args.selector, args.runtime, spec=spec_of(args),
        selector_options=selector_options(args.selector_option),
        runtime_options={**runtime_options(args), "engine": engine},
    )  # fmt: skip
    got = pair.predict(
        profile, batch=args.batch, context=args.context, churn=args.churn, value_bytes=args.value_bytes
    )
    if args.trace is not None and got.timeline is not None:
        write_trace(args.trace, [TraceSource(timeline=got.timeline, plan=pair.plan())])
    if args.json:
        show_json(_document(args, got, profile, pair.plan()))
    else:
        _tables(args, got, profile, pair.plan())
    return 0


def _document(args: argparse.Namespace, got: Prediction, profile: Profile, plan: StepPlan) -> dict[str, Any]:
    names = ("shape", "batch", "context", "churn", "slots", "policy", "selector_option", "value_bytes", "link_gb_s")
    document = {
        "asked": {name: getattr(args, name) for name in names} | {"spec": spec_of(args)},
        "plan": {"lead": plan.lead, "resident_layers": plan.resident_layers, "engine": plan.engine},
        "memory_bytes": {**_need(got), "device_has": profile.device_bytes, "host_has": profile.host_bytes},
        "feasible": got.feasible,
        "problem": None if got.problem is None else str(got.problem),
        "provenance": {**got.provenance, "version": __version__},
    }
    if got.feasible:
        document |= {
            "step_s": got.step_s, "tokens_per_s": got.tokens_per_s, "exposed_s": got.exposed_s,
            "hidden_s": got.hidden_s, "transfer_s": got.transfer_s, "bound": got.bound,
            "critical_path_s": got.spent, "by_kind_s": got.by_kind,
        }  # fmt: skip
    return document


def _need(got: Prediction) -> dict[str, float]:
    from attrs import asdict

    return asdict(got.need)


def _tables(args: argparse.Namespace, got: Prediction, profile: Profile, plan: StepPlan) -> None:
    title = (
        f"{args.shape} on {profile.name}: {plan.selector} x {plan.runtime} ({plan.engine}), batch {args.batch}, "
        f"context {args.context}, {args.churn:.1%} of each selection moved"
    )
    if got.problem is not None:
        show_table(f"{title}: does not fit", ("",), [[str(got.problem)]])
    else:
        figures = [
            ("step", seconds(got.step_s)), ("tokens/s", f"{got.tokens_per_s:.4g}"),
            ("transfer", seconds(got.transfer_s)), ("hidden", seconds(got.hidden_s)),
            ("exposed", seconds(got.exposed_s)), ("bound by", got.bound),
        ]  # fmt: skip
        show_table(title, ("predicted", "per step"), figures)
        kinds = [(kind, seconds(time), f"{time / got.step_s:.1%}") for kind, time in got.by_kind.items()]
        show_table("Where the time goes (lanes overlap)", ("operation", "per step", "of a step"), kinds)
    needs = [(name, size(value)) for name, value in _need(got).items()]
    rests_on = f"{profile.title}; {got.provenance['numbers']} numbers; digest {profile.digest}, {profile.date}"
    show_table(
        f"Memory (device has {size(profile.device_bytes)}, host {size(profile.host_bytes)})", ("what", "bytes"), needs,
        notes=[f"Predicted, not measured: {rests_on}."],
    )  # fmt: skip
