"""`sparda advise`: which combination serves a model on a machine best, and whether offloading pays. Loads no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.cli.knobs import add_knobs, scenario_of
from sparda_core.cli.options import POSITIVE, add_json
from sparda_core.cli.parser import Parser, number
from sparda_core.cli.predict_tables import rate
from sparda_core.cli.screen import seconds, show_json, show_table, size
from sparda_core.files import check_place, csv_text, write_whole
from sparda_core.whatif.reading import readable
from sparda_core.whatif.search import LOCALITY, Choices

if TYPE_CHECKING:
    from sparda_core.whatif.advise import Advice
    from sparda_core.whatif.scenario import Scenario
    from sparda_core.whatif.search import Option

#: Knobs that are searched, or that belong to prefill.
SEARCHED = (
    "selector", "selector_options", "lead", "runtime", "slots", "slot_factor", "policy", "engine", "ctas", "batch",
    "phase", "chunk", "prefill", "steps",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Options of `sparda advise`."""
    target = parser.add_argument_group("target (neither: as many tokens per second as can be)")
    target.add_argument("--batch", type=POSITIVE, metavar="ROWS", help="sequences to decode together")
    target.add_argument(
        "--tokens-per-s", type=number(float, least=1e-9), metavar="N", help="tokens per second to reach, over all rows"
    )
    tried, usual = parser.add_argument_group("what is tried"), Choices()
    for name, kind, values, text in (
        ("selectors", str, usual.selectors, "names"), ("runtimes", str, usual.runtimes, "names"),
        ("slot_factors", float, usual.slot_factors, "device slots, in multiples of the budget"),
        ("engines", str, None, "ways to move blocks (default: all of the profile)"),
        ("ctas", int, usual.ctas, "thread blocks of a copy kernel (uva)"),
    ):  # fmt: skip
        tried.add_argument(
            "--" + name.replace("_", "-"), type=_list_of(kind), default=values, metavar="A,B,...", help=text
        )
    add_knobs(parser, leave_out=SEARCHED)
    parser.explain({
        "locality": "how blocks come back, by name or file: misses follow from slots and policy "
        f"(default: {LOCALITY}, unless there is a recording)"
    })  # fmt: skip
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the best of each pair, a line each")
    add_json(parser)


def _list_of(kind: type[int | float | str]) -> Callable[[str], tuple[Any, ...]]:
    def convert(text: str) -> tuple[Any, ...]:
        try:
            return tuple(dict.fromkeys(kind(item.strip()) for item in text.split(",") if item.strip()))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must list numbers, such as 1,2,4") from None

    return convert


def run(args: argparse.Namespace) -> int:
    """Search, then print the advice."""
    from sparda_core.cli.running import progress
    from sparda_core.whatif.advise import advise

    batch, ctas = args.batch, args.ctas
    del args.batch, args.ctas  # a target and a list: not the knobs of these names
    base = scenario_of(args)
    if base.locality is None and base.recording is None:
        base = base.turned(locality=LOCALITY)
    if args.csv is not None:
        check_place(args.csv)
    choices = Choices(
        selectors=args.selectors, runtimes=args.runtimes, slot_factors=args.slot_factors, engines=args.engines,
        ctas=ctas,
    )  # fmt: skip
    with progress() as report:
        got = advise(base, batch=batch, tokens_per_s=args.tokens_per_s, choices=choices, report=report)
    if args.csv is not None:
        write_whole(args.csv, csv_text(lines(got)))
    if args.json:
        show_json(document(base, choices, got))
    else:
        _show(base, got)
    return 0


def document(base: Scenario, choices: Choices, got: Advice) -> dict[str, Any]:
    """The advice as one JSON document; without a recommendation where nothing fits."""
    import attrs

    knobs = {name: value for name, value in attrs.asdict(base).items() if name not in SEARCHED}
    told: dict[str, Any] = {
        "asked": {**knobs, "batch": got.target.batch, "tokens_per_s": got.target.tokens_per_s},
        "tried": choices, "feasible": got.feasible, "problem": got.problem,
        "refused": got.found.refused, "most_rows": got.found.most, "predictions": got.found.tried,
        "provenance": _provenance(base),
    }  # fmt: skip
    if got.best is not None:
        told |= {
            "recommended": _option(got.best), "target_met": got.met, "offload_pays": got.pays,
            "margin_over_resident": got.over_resident, "margin_over_runner_up": got.over_runner_up,
            "resident": _option(got.resident), "offload": _option(got.offload), "runner_up": _option(got.runner_up),
            "compared": [_option(one) for one in got.compared], "flips": got.flips,
        }  # fmt: skip
    return told


def lines(got: Advice) -> list[dict[str, Any]]:
    """The best of each pair, fastest first, and whether it is the advice; where nothing fits, the problem alone."""
    if got.best is None:
        return [{"problem": got.problem}]
    return [{"recommended": one is got.best, **(_option(one) or {})} for one in got.compared]


def _option(option: Option | None) -> dict[str, Any] | None:
    if option is None:
        return None
    chosen = ("selector", "runtime", "batch", "slot_factor", "policy", "engine", "ctas")
    return {
        **{name: getattr(option.scenario, name) for name in chosen},
        "step_s": option.step_s, "tokens_per_s": option.tokens_per_s, "exposed_s": option.exposed_s,
        "bound": option.bound, "device_bytes": option.device_bytes, "host_bytes": option.host_bytes,
    }  # fmt: skip


def _provenance(base: Scenario) -> dict[str, Any]:
    from sparda_core import __version__

    machine = base.machine()
    return {
        "profile": machine.name, "profile_digest": machine.digest, "profile_date": machine.date,
        "locality": base.locality, "recording": base.recording, "churn": base.churn_share(), "version": __version__,
    }  # fmt: skip


def _show(base: Scenario, got: Advice) -> None:
    machine = base.machine()
    title = (
        f"{base.shape} on {machine.name}, context {base.context}, budget {base.budget} "
        f"(device {size(machine.device_bytes)}, host {size(machine.host_bytes)})"
    )
    if got.best is None:
        show_table(f"{title}: nothing fits", ("",), [[got.problem]])
        return
    show_table(f"{title}: advice", ("what", "advice"), [*_recommended(got.best), *_verdict(got)])
    misses = f"recording {base.recording}" if base.recording else f"locality {base.locality}"
    rests_on = (
        f"Misses: {misses}, churn {base.churn_share():.4g}. Predicted, not measured; "
        f"profile digest {machine.digest}, {machine.date}."
    )
    show_table(
        "The best of each pair", ("selector x runtime", "batch", "slots", "engine", "CTAs", "tokens/s", "step",
        "exposed", "bound", "device", "host"), [_row(option) for option in got.compared],
        notes=[
            "Time at equal budget is compared, never quality; window, dense and random are left out unless named.",
            rests_on,
        ],
    )  # fmt: skip


def _recommended(best: Option) -> list[tuple[str, str]]:
    at = best.scenario
    rows = [("selector", at.selector), ("runtime", at.runtime), ("batch", f"{at.batch} rows")]
    if at.runtime != "resident":
        rows += [
            ("slots", f"{at.slot_count()} blocks ({at.slot_factor:g} x budget), {at.policy}"),
            ("engine", f"{at.engine}, {at.ctas} CTA{'s' * (at.ctas > 1)}" if at.engine == "uva" else str(at.engine)),
        ]
    return [
        *rows, ("tokens/s", rate(best.tokens_per_s)), ("step", seconds(best.step_s)), ("bound by", best.bound),
        ("memory", f"device {size(best.device_bytes)}, host {size(best.host_bytes)}"),
    ]  # fmt: skip


def _verdict(got: Advice) -> list[tuple[str, str]]:
    rows = []
    if got.target.given:
        rows.append(("target met", _met(got)))
    rows.append(("offloading pays", _pays(got)))
    if got.runner_up is not None and got.over_runner_up is not None:
        rows.append(("over runner-up", f"{got.over_runner_up:+.1%} ({got.runner_up.pair})"))
    for turn in got.flips:
        if turn.value is None:
            rows.append((f"flips with {turn.knob}", f"never: {turn.why}"))
        else:
            at_value = f"at {readable(turn.value)} (now {readable(turn.at)}), to {turn.then}"
            rows.append((f"flips with {turn.knob}", at_value))
    return rows


def _met(got: Advice) -> str:
    assert got.best is not None
    if got.met:
        return "yes"
    if got.target.tokens_per_s is not None:
        return f"no: {rate(got.best.tokens_per_s)} of {rate(got.target.tokens_per_s)} tokens/s"
    most = max(got.found.most, key=lambda pair: got.found.most[pair])
    return (
        f"no: {got.best.scenario.batch} of {got.target.batch} rows at a time; "
        f"at most {got.found.most[most]} fit ({most})"
    )


def _pays(got: Advice) -> str:
    if got.offload is None:
        return "no: nothing that offloads fits or was tried"
    if got.resident is None or got.over_resident is None:
        return "yes: nothing fits on the device alone, or it was not tried"
    than = f"{got.resident.pair} at {got.resident.scenario.batch} rows"
    return f"{'yes' if got.pays else 'no'}: {got.over_resident:+.1%} over {than}"


def _row(option: Option) -> tuple[Any, ...]:
    at = option.scenario
    offloads = at.runtime != "resident"
    return (
        option.pair, at.batch, f"{at.slot_factor:g}x {at.policy}" if offloads else "-", at.engine if offloads else "-",
        at.ctas if offloads and at.engine == "uva" else None, rate(option.tokens_per_s), seconds(option.step_s),
        seconds(option.exposed_s), option.bound, size(option.device_bytes), size(option.host_bytes),
    )  # fmt: skip
