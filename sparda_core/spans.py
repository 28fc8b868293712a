"""Timelines: when each operation ran. One form for measured and simulated ones, one function a metric."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from sparda_core.errors import ConfigError
from sparda_core.plan import Kind, Lane, StepPlan


@attrs.frozen(kw_only=True)
class Span:
    """One operation's stay on its lane. Times in integer nanoseconds from the start of the timeline."""

    name: str
    kind: str
    layer: int
    lane: Lane
    start_ns: int
    end_ns: int
    step: int = 0
    args: dict[str, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ConfigError(f"span {self.name!r} ends at {self.end_ns} ns, before its start at {self.start_ns} ns")


def _by_start(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.lane, span.end_ns)))


@attrs.frozen(kw_only=True)
class Timeline:
    """Spans of one or more steps, measured or simulated, ordered by start."""

    label: str
    spans: tuple[Span, ...] = attrs.field(converter=_by_start)

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        return max(s.end_ns for s in self.spans) - min(s.start_ns for s in self.spans) if self.spans else 0

    def lane(self, lane: Lane) -> tuple[Span, ...]:
        """Spans of one lane, by start."""
        return tuple(span for span in self.spans if span.lane == lane)

    def busy_ns(self, lane: Lane) -> int:
        """Time in which at least one operation of the lane ran."""
        total = end = 0
        for span in self.lane(lane):
            total += max(0, span.end_ns - max(end, span.start_ns))
            end = max(end, span.end_ns)
        return total


def exposed_wait_ns(timeline: Timeline, plan: StepPlan) -> dict[int, int]:
    """Per layer: start of `attend` minus end of the operation before it on the compute lane, summed over steps.

    The one definition of exposed transfer, for measured and simulated timelines alike. Layers whose
    attention waits for no transfer are left out.
    """
    compute = plan.lane(Lane.COMPUTE)
    fetched = {op.layer for op in plan if op.kind in (Kind.FETCH, Kind.STAGE)}
    before = {op.name: compute[i - 1].name for i, op in enumerate(compute) if i and op.kind == Kind.ATTEND}
    spans = {(span.step, span.name): span for span in timeline.spans}
    waits: dict[int, int] = {}
    for (step, name), span in spans.items():
        if name in before and span.layer in fetched:
            wait = span.start_ns - spans[step, before[name]].end_ns
            waits[span.layer] = waits.get(span.layer, 0) + max(0, wait)
    return waits
