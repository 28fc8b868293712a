"""From the timelines of single steps to figures over a run. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from sparda_core.plan import Lane, StepPlan
from sparda_core.spans import Span, Timeline, exposed_wait_ns


def join_steps(label: str, steps: Sequence[Timeline]) -> Timeline:
    """One timeline of consecutive steps, each starting where the one before ended."""
    spans: list[Span] = []
    at_ns = 0
    for number, step in enumerate(steps):
        first = min((span.start_ns for span in step.spans), default=0)
        shift = at_ns - first
        spans += [
            attrs.evolve(span, start_ns=span.start_ns + shift, end_ns=span.end_ns + shift, step=number)
            for span in step.spans
        ]
        at_ns += step.duration_ns
    return Timeline(label=label, spans=tuple(spans))


def exposed_s(timeline: Timeline, plan: StepPlan) -> float:
    """Exposed wait of a mean step, seconds."""
    steps = len({span.step for span in timeline.spans})
    return sum(exposed_wait_ns(timeline, plan).values()) / 1e9 / max(steps, 1)


def compute_slowdown(beside: Timeline, alone: Timeline) -> float:
    """Time of the compute lane's operations beside running copies / the same operations without.

    Operations that only one of the two has are left out, waits are part of neither. Above 1 a copy
    costs something even where no wait is exposed.
    """
    common = {span.name for span in beside.lane(Lane.COMPUTE)} & {span.name for span in alone.lane(Lane.COMPUTE)}
    return _busy_per_step(beside, common) / _busy_per_step(alone, common)


def _busy_per_step(timeline: Timeline, names: set[str]) -> float:
    spans = [span for span in timeline.lane(Lane.COMPUTE) if span.name in names]
    return sum(span.end_ns - span.start_ns for span in spans) / len({span.step for span in spans})


def timeline_to_plain(timeline: Timeline) -> dict[str, Any]:
    """A timeline as JSON can hold it."""
    return {
        "label": timeline.label,
        "spans": [[s.name, s.kind, s.layer, str(s.lane), s.start_ns, s.end_ns, s.step] for s in timeline.spans],
    }


def timeline_from_plain(plain: dict[str, Any]) -> Timeline:
    """The timeline that `timeline_to_plain` was given."""
    spans = [
        Span(name=name, kind=kind, layer=layer, lane=Lane(lane), start_ns=start, end_ns=end, step=step)
        for name, kind, layer, lane, start, end, step in plain["spans"]
    ]
    return Timeline(label=plain["label"], spans=tuple(spans))
