"""`sparda timeline`: one combination as traces for the Perfetto viewer, measured and predicted, or predicted alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.knobs import SPELLED, add_knobs, check_knobs, scenario_of
from sparda_core.cli.options import Default, add_json, add_model, add_other_blocks, add_text
from sparda_core.cli.screen import seconds, show_json, show_table
from sparda_core.errors import ConfigError
from sparda_core.files import check_folder, make_folder
from sparda_core.shapes import BlockSpec
from sparda_core.whatif.scenario import Scenario

if TYPE_CHECKING:
    from sparda_core.cli.parser import Parser
    from sparda_core.trace import TraceSource

#: Options of a run on this machine, with their defaults; a prediction has no use for them.
MEASURED_ONLY = {
    "model": "smollm2", "forecast": None, "threads": None, "text": None, "max_tokens": None, "other_blocks": False,
}  # fmt: skip
#: What a run on this machine takes of a scenario's knobs, with its own defaults. Every other knob is refused there.
MEASURED: dict[str, Any] = {
    "batch": 1, "steps": 4, "profile": None, "selector": "forecast", "selector_options": [],
    "runtime": "offload-prefetch", "resident_layers": None, "slots": None, "policy": "last-selection",
    "link_gb_s": None,
    **{name: Default(getattr(BlockSpec(), name)) for name in ("budget", "sink", "local", "block", "window", "stride")},
}  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Options of `sparda timeline`: those of a run on this machine, and every knob of a prediction."""
    parser.add_argument(
        "--predicted", action="store_true",
        help="the prediction alone, of any shape on any profile: needs no model, and takes every option of `predict`",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("sparda-traces"), metavar="DIR",
        help="folder for measured.json, predicted.json and both.json",
    )  # fmt: skip
    parser.add_argument(
        "--plot", action="store_true", help="also draw one step as timeline.png, the one of median length"
    )
    add_knobs(parser)
    add_text(parser)
    add_model(parser)
    add_other_blocks(parser)
    add_json(parser)
    # Nothing stands for "not given", so that an option of the other mode is refused and not passed over.
    parser.set_defaults(**dict.fromkeys((*Scenario.knobs(), *MEASURED_ONLY)))
    usual = Scenario()
    words = {name: f"{knob.help} (with --predicted only)" for name, knob in Scenario.knobs().items()}
    for name, value in MEASURED.items():
        predicted = getattr(usual, name)
        plain = value is not None and not isinstance(value, list)
        told = f"{value}, predicted {predicted}" if value != predicted else f"{value}"
        told = f"the checkpoint's own, or {told}" if isinstance(value, Default) else told
        words[name] = f"{Scenario.knobs()[name].help}{f' (default: {told})' if plain else ''}"
    words["model"] = "'smollm2', a GGUF file, or a directory with config.json and safetensors (default: smollm2)"
    words["profile"] = "the machine (default: this one, calibrated now, some seconds; predicted h200)"
    words["link_gb_s"] = (
        "speed of the host link, 1e9 bytes a second: here an emulated one (default: no limit; predicted the profile's)"
    )
    words["steps"] = "decode steps in a trace (default: 4, predicted 1)"
    parser.explain(words)


def run(args: argparse.Namespace) -> int:
    """Write the traces and say what is in them."""
    check_folder(args.out)
    if args.plot:
        from sparda_core.bench.plots import require_matplotlib

        require_matplotlib()
    given = {name for name in (*Scenario.knobs(), *MEASURED_ONLY) if getattr(args, name) is not None}
    if args.predicted:
        _refuse(given & set(MEASURED_ONLY), "describes a run on this machine; leave it out, or leave out --predicted")
        return _predicted(args, given)
    _refuse(given - set(MEASURED) - set(MEASURED_ONLY), "describes a prediction; give --predicted, or leave it out")
    for name, value in {**MEASURED, **MEASURED_ONLY}.items():
        if name not in given:
            setattr(args, name, value)
    args.selector_option = args.selector_options
    from sparda_core.cli.timeline_measured import run_measured

    return run_measured(args)


def _refuse(names: set[str], why: str) -> None:
    for name in sorted(names):
        raise ConfigError(f"{SPELLED.get(name, '--' + name.replace('_', '-'))} {why}")


def _predicted(args: argparse.Namespace, given: set[str]) -> int:
    from sparda_core.simulator.observe import traced

    knobs = argparse.Namespace(**{name: getattr(args, name) for name in Scenario.knobs() if name in given})
    scenario = scenario_of(knobs)
    check_knobs(scenario)
    got = scenario.predict()
    source = traced(got)
    title = f"{scenario.shape} on {got.provenance['profile']}: {got.plan.selector} x {got.plan.runtime}"
    leave(
        args, {"predicted": [source]}, title=f"{title}, batch {scenario.batch}, context {scenario.context}",
        told={"asked": scenario, "provenance": got.provenance},
        notes=[f"Predicted, not measured: {got.provenance['profile_title']}; {got.provenance['numbers']} numbers."],
    )  # fmt: skip
    return 0


def leave(
    args: argparse.Namespace, files: Mapping[str, Sequence[TraceSource]], *, title: str, told: Mapping[str, Any],
    notes: Sequence[str],
) -> None:  # fmt: skip
    """Write one trace a name into the folder, the figure if asked for, and print what they hold.

    The last of `files` holds every timeline there is.
    """
    from sparda_core.cli.timeline_figures import counter_cells, counter_rows, figures
    from sparda_core.trace import write_trace

    folder, every = make_folder(args.out), list(files.values())[-1]
    written = {name: folder / f"{name}.json" for name in files}
    events = {name: write_trace(file, files[name]) for name, file in written.items()}
    last = list(written.values())[-1]
    if args.plot:
        from sparda_core.bench.plot_timelines import draw_timelines

        written["plot"] = folder / "timeline.png"
        draw_timelines([(s.timeline.label, s.timeline) for s in every], written["plot"], title=f"One step: {title}")
    shown = {source.timeline.label: figures(source) for source in every}
    counters = {source.timeline.label: counter_rows(source) for source in every if source.usage}
    if args.json:
        show_json({"files": written, "events": events, **told, "timelines": shown, "counters": counters})
        return
    columns = ("timeline", "steps", "step", "compute busy", "transfer", "exposed wait")
    rows = [(label, f["steps"], *(seconds(f[name]) for name in list(f)[1:])) for label, f in shown.items()]
    show_table(f"{title}; mean of a step", columns, rows, notes=notes)
    for label, values in counters.items():
        show_table(
            f"Counters of {label}", ("counter", "mean", "peak", "in all"),
            [(name, *counter_cells(row)) for name, row in values.items()],
        )  # fmt: skip
    sys.stdout.write(f"Open {last} at https://ui.perfetto.dev\n")
