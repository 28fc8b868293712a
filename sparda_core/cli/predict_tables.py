"""What `sparda predict` shows on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparda_core.cli.screen import say, seconds, show_table, size
from sparda_core.simulator.profile import moves
from sparda_core.whatif.reading import readable

if TYPE_CHECKING:
    from sparda_core.simulator.predict import Prediction
    from sparda_core.whatif.explain import Explanation
    from sparda_core.whatif.nearest import Turn
    from sparda_core.whatif.scenario import Scenario

#: Units of the knobs that have one, as in their help.
UNITS = {
    "link_gb_s": "GB/s", "hbm_gb_s": "GB/s", "tflop_s": "TFLOP/s", "context": "tokens", "batch": "rows",
    "budget": "blocks", "slots": "blocks", "in_flight_kib": "KiB", "chunk": "tokens",
}  # fmt: skip


def show_prediction(scenario: Scenario, got: Prediction, why: Explanation | None) -> None:
    """Tables of one prediction, or of the memory that it lacks."""
    title = title_of(scenario, got)
    if got.problem is not None:
        say(f"{title}: does not fit", str(got.problem))
    else:
        _figures(title, scenario, got)
        if why is not None:
            _explained(why)
    _memory(scenario, got)


def title_of(scenario: Scenario, got: Prediction) -> str:
    """What was predicted, in one line."""
    plan = got.plan
    of = f"batch {scenario.batch}, context {scenario.context}"
    if scenario.phase == "prefill":
        of = f"prefill of {scenario.context} tokens in chunks of {scenario.chunk} ({scenario.prefill})"
    gpus = f"{scenario.gpus} x " if scenario.gpus > 1 else ""
    pair = f"{plan.selector} x {plan.runtime}"
    if any(moves(op) for op in plan):
        pair += f" ({plan.engine})"
    slots = got.facts[0].slots
    if slots > got.facts[0].budget:
        of += f", {slots} slots ({scenario.policy})"
    return f"{scenario.shape} on {gpus}{got.provenance['profile']}: {pair}, {of}"


def rate(tokens_per_s: float) -> str:
    """Tokens per second with at least four figures."""
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 1000 else f"{tokens_per_s:.4g}"


def _figures(title: str, scenario: Scenario, got: Prediction) -> None:
    step = "chunk" if scenario.phase == "prefill" else "step"
    rows = [
        (step, seconds(got.step_s)), ("tokens/s", rate(got.tokens_per_s)),
        ("transfer", seconds(got.transfer_s)), ("hidden", seconds(got.hidden_s)),
        ("exposed", seconds(got.exposed_s)),
    ]  # fmt: skip
    if scenario.phase == "decode":
        rows += [("blocks moved", readable(got.misses)), ("of these late", readable(got.late_blocks))]
    rows.append(("bound by", got.bound))
    if got.steps > 1:
        rows.insert(1, (f"all {got.steps} {step}s", seconds(got.total_s)))
    spent = ", ".join(f"{name} {time / got.step_s:.0%}" for name, time in got.spent.items() if time)
    notes = [f"The critical path is spent for: {spent}."]
    if "beyond_native_context" in got.provenance:
        beyond = got.provenance["beyond_native_context"]
        notes.append(f"Context beyond the model's own ({beyond}): quality depends on that, time does not.")
    if got.provenance.get("extrapolated"):
        notes.append(f"Extrapolated beyond what was measured: {got.provenance['extrapolated']}.")
    show_table(title, ("predicted", f"per {step}"), rows, notes=notes)
    kinds = [(kind, seconds(time), f"{time / got.step_s:.1%}") for kind, time in got.by_kind.items()]
    show_table("Where the time goes (lanes overlap)", ("operation", f"per {step}", f"of a {step}"), kinds)


def _explained(why: Explanation) -> None:
    rows = [(one.knob, _value(one.knob, one.at), f"{one.slope:+.2f}") for one in why.steepest]
    show_table("The three knobs that move tokens/s most", ("knob", "now", "% for 1 %"), rows)
    show_table(
        "The nearest change of bound", ("knob", "now", "changes at", "factor", "then bound by"),
        [_turn_row(turn) for turn in why.turns],
    )  # fmt: skip


def _turn_row(turn: Turn) -> tuple[str, ...]:
    now = _value(turn.knob, turn.at)
    if turn.value is None or turn.factor is None:
        return turn.knob, now, "no change", "-", turn.why
    return turn.knob, now, _value(turn.knob, turn.value), f"x {turn.factor:.3g}", str(turn.then)


def _value(knob: str, value: float) -> str:
    return f"{readable(value)} {UNITS.get(knob, '')}".strip()


def _memory(scenario: Scenario, got: Prediction) -> None:
    import attrs

    machine, told = scenario.machine(), got.provenance
    needs = [(name, size(value)) for name, value in attrs.asdict(got.need).items()]
    rests_on = f"{told['profile_title']}; {told['numbers']} numbers; digest {machine.digest}, {told['profile_date']}"
    show_table(
        f"Memory (device has {size(machine.device_bytes)}, host {size(machine.host_bytes)})",
        ("what", "bytes"), needs,
        notes=[f"Misses: {told['locality']}.", f"Predicted, not measured: {rests_on}."],
    )  # fmt: skip
