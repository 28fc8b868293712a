"""What a trace is made from: timelines with their plans, cut into steps, of which as many are drawn as fit."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.plan import Kind, StepPlan
from sparda_core.spans import Span, Timeline
from sparda_core.trace_counters import Usage, resource_counters
from sparda_core.trace_parts import LANE_THREADS, chains


class Origin(enum.StrEnum):
    """Where a timeline comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"


@attrs.frozen(kw_only=True)
class TraceSource:
    """One timeline of a trace, and the plan that it ran.

    usage  what each resource gave over time, for counters; empty where nobody watched
    notes  what its figures rest on; goes into the metadata
    """

    timeline: Timeline
    plan: StepPlan
    origin: Origin = Origin.PREDICTED
    usage: Sequence[Usage] = ()
    notes: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class StepPart:
    """What one step of one timeline holds."""

    number: int
    timeline: Timeline
    usage: tuple[Usage, ...]

    def most_events(self, plan: StepPlan) -> int:
        """Events that it is drawn with, or a few more: as if every layer moved blocks and waited for them."""
        attends = sum(span.kind == Kind.ATTEND for span in self.timeline.spans)
        counters = sum(1 for _ in resource_counters(0, self.usage))
        return len(self.timeline.spans) + 3 * len(chains(plan)) + 2 * attends + counters


def by_step(source: TraceSource) -> dict[int, StepPart]:
    """A timeline's steps by number, ascending."""
    spans: dict[int, list[Span]] = {}
    usage: dict[int, list[Usage]] = {}
    for span in source.timeline.spans:
        spans.setdefault(span.step, []).append(span)
    for one in source.usage:
        usage.setdefault(one.step, []).append(one)
    label = source.timeline.label
    return {
        number: StepPart(
            number=number, timeline=Timeline(label=label, spans=tuple(spans[number])),
            usage=tuple(usage.get(number, ())),
        )
        for number in sorted(spans)
    }  # fmt: skip


def steps_that_fit(
    sources: Sequence[TraceSource], split: Sequence[Mapping[int, StepPart]], most: int
) -> list[int]:
    """Numbers of the steps that are drawn, the same in every timeline: all, or as many as fit, evenly spread.

    Raises ConfigError where not even one step stays within `most` events.
    """
    steps = sorted({number for one in split for number in one})
    events = dict.fromkeys(steps, 0)
    for source, one in zip(sources, split, strict=True):
        for number, part in one.items():
            events[number] += part.most_events(source.plan)
    room = most - len(sources) * (2 + 2 * len(LANE_THREADS))
    if sum(events.values()) <= room:
        return steps
    largest = max(events.values())
    fits = room // largest
    if fits < 1:
        raise ConfigError(
            f"one step of the trace would hold up to {largest} events, more than {most}: "
            "trace a plan of fewer operations"
        )
    spread = (len(steps) - 1) / max(1, fits - 1)
    return sorted({steps[round(i * spread)] for i in range(fits)})
