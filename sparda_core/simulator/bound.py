"""What bounds a step: its critical path, and what the time on it was spent for."""

from __future__ import annotations

from collections.abc import Mapping

from sparda_core.plan import Kind, StepPlan
from sparda_core.simulator.profile import HBM, LINK, RUNTIME_KINDS
from sparda_core.spans import Span, Timeline

#: What can bound a step. A selector's own operations and the residency diff count as `select`, whatever they use.
BOUNDS = ("launch", "select", "hbm", "compute", "pcie")


def critical_path(timeline: Timeline, plan: StepPlan, step: int = 0) -> tuple[Span, ...]:
    """The chain of spans that decided when a step ended, first to last.

    Walks back from the last end: before a span stands the one of its predecessors that ended last
    (ties: the one on its own lane).
    """
    spans = {span.name: span for span in timeline.spans if span.step == step}
    waits = _predecessors(plan)
    here = max(spans.values(), key=lambda span: (span.end_ns, span.start_ns, span.name))
    path = [here]
    while True:
        before = [spans[name] for name in waits[here.name] if name in spans]
        if not before:
            return tuple(reversed(path))
        here = max(before, key=lambda span: (span.end_ns, span.lane == path[-1].lane))
        path.append(here)


def shares(timeline: Timeline, plan: StepPlan, step: int = 0) -> dict[str, float]:
    """Seconds of the critical path by what they were spent for; the keys are BOUNDS.

    Launch gaps count as `launch`; the rest of a span counts whole for the longest of its flows. Time
    between two spans of the path is waiting for a launch.
    """
    spent = dict.fromkeys(BOUNDS, 0)
    last_ns: int | None = None
    for span in critical_path(timeline, plan, step):
        gap_ns = span.start_ns - last_ns if last_ns is not None else int(span.args.get("gap_ns", 0))
        inner_ns = int(span.args.get("launches_ns", 0))
        spent["launch"] += gap_ns + inner_ns
        spent[_spent_for(span)] += span.end_ns - span.start_ns - inner_ns
        last_ns = span.end_ns
    return {name: ns / 1e9 for name, ns in spent.items()}


def bound_of(spent: Mapping[str, float]) -> str:
    """The name with the largest share; ties go to the earlier one of BOUNDS."""
    return max(BOUNDS, key=lambda name: spent[name])


def _spent_for(span: Span) -> str:
    if span.kind == Kind.DIFF or span.kind not in RUNTIME_KINDS:
        return "select"
    flows = {"pcie": span.args.get(f"{LINK}_ns", 0), "hbm": span.args.get(f"{HBM}_ns", 0)}
    longest = max(flows, key=lambda name: flows[name])
    return longest if flows[longest] > max(span.args.get("flops_ns", 0), span.args.get("time_ns", 0)) else "compute"


def _predecessors(plan: StepPlan) -> dict[str, tuple[str, ...]]:
    """Like StepPlan.predecessors, for every operation at once."""
    last: dict[str, str] = {}
    waits: dict[str, tuple[str, ...]] = {}
    for op in plan.ops:
        waits[op.name] = (*op.after, *((last[op.lane],) if op.lane in last else ()))
        last[op.lane] = op.name
    return waits
