"""`sparda predict`: how long a step takes on a machine, from its profile alone. Loads no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core import files
from sparda_core.cli.knobs import add_knobs, check_knobs, scenario_of
from sparda_core.cli.options import add_json
from sparda_core.cli.screen import console, show_json
from sparda_core.files import check_place, write_whole

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction
    from sparda_core.whatif.explain import Explanation
    from sparda_core.whatif.scenario import Scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sparda predict`."""
    add_knobs(parser)
    parser.add_argument(
        "--explain", action="store_true",
        help="also say which knobs move tokens/s most, and how far each main one is from another bound",
    )  # fmt: skip
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write the predicted timeline as a trace")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write knobs and figures as one CSV row")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Predict, print, and write the files that were asked for."""
    from sparda_core.whatif.explain import explain

    scenario = scenario_of(args)
    check_knobs(scenario)
    for file in (args.trace, args.csv):
        if file is not None:
            check_place(file)
    got = scenario.predict()
    why = explain(scenario) if args.explain and got.feasible else None
    if args.trace is not None and not got.feasible:
        console(sys.stderr).print(f"no trace in {args.trace}: the point does not fit into memory", markup=False)
    elif args.trace is not None:
        from sparda_core.simulator.observe import traced
        from sparda_core.trace import write_trace

        write_trace(args.trace, [traced(got)])
    if args.csv is not None:
        write_whole(args.csv, csv_text(scenario, got))
    if args.json:
        show_json(document(scenario, got, why))
    else:
        from sparda_core.cli.predict_tables import show_prediction

        show_prediction(scenario, got, why)
    return 0


def document(scenario: Scenario, got: Prediction, why: Explanation | None) -> dict[str, Any]:
    """A prediction as one JSON document; without times where it does not fit."""
    import attrs

    machine, plan = scenario.machine(), got.plan
    told = {
        "asked": attrs.asdict(scenario),
        "plan": {"lead": plan.lead, "resident_layers": plan.resident_layers, "engine": plan.engine},
        "memory_bytes": {
            **attrs.asdict(got.need), "device_needs": got.need.device, "device_has": machine.device_bytes,
            "host_has": machine.host_bytes,
        },
        "feasible": got.feasible,
        "problem": None if got.problem is None else str(got.problem),
        "provenance": got.provenance,
    }  # fmt: skip
    if got.feasible:
        told |= figures(got) | {"critical_path_s": got.spent, "by_kind_s": got.by_kind}
    if why is not None:
        told |= {"steepest": why.steepest, "slopes": why.slopes, "next_bound": why.turns}
    return told


def figures(got: Prediction) -> dict[str, Any]:
    """What a prediction that fits says of time; seconds and blocks per step."""
    return {
        "step_s": got.step_s, "steps": got.steps, "total_s": got.total_s, "tokens_per_s": got.tokens_per_s,
        "transfer_s": got.transfer_s, "hidden_s": got.hidden_s, "exposed_s": got.exposed_s, "bound": got.bound,
        "misses": got.misses, "late_blocks": got.late_blocks,
    }  # fmt: skip


def csv_text(scenario: Scenario, got: Prediction) -> str:
    """Header and one row: every knob, then memory and figures; empty where there is no value."""
    import attrs

    knobs = attrs.asdict(scenario)
    knobs["selector_options"] = " ".join(f"{name}={value}" for name, value in scenario.selector_options)
    memory = {f"{name}_bytes": value for name, value in attrs.asdict(got.need).items()}
    row = {**knobs, "feasible": got.feasible, "problem": got.problem, **memory}
    row |= figures(got) if got.feasible else {}
    told = {name: got.provenance.get(name, "") for name in ("profile_digest", "extrapolated", "version")}
    return files.csv_text([{**row, **told}])
