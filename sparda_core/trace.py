"""Traces: timelines as Chrome JSON, which the Perfetto viewer and chrome://tracing open.

Measured and predicted timelines get the same tracks, so that they can be laid one above the other: a
process for each timeline, in it one thread for each lane, in fixed order. `ts` and `dur` are
microseconds, as the format wants; the exact integer nanoseconds are in `args`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import attrs

from sparda_core.errors import ConfigError, RecordingError
from sparda_core.files import write_whole
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.spans import Span, Timeline, exposed_wait_ns

#: Viewers stay quick up to about here; 64 steps of 36 layers are 15,000 events.
MAX_EVENTS = 300_000

#: Thread id of each lane, the same in every trace.
LANE_THREADS: dict[Lane, int] = {lane: number for number, lane in enumerate(Lane, start=1)}

Event = dict[str, Any]


@attrs.frozen(kw_only=True)
class TraceSource:
    """One timeline of a trace, and the plan that it ran."""

    timeline: Timeline
    plan: StepPlan


def trace_events(sources: Sequence[TraceSource]) -> list[Event]:
    """Events of Chrome's trace format, one process a timeline in the order given.

    For each: names of its tracks, a slice an operation, flow arrows along selection -> fetch -> attention
    of every layer, and a counter that stands at a layer's exposed wait (ns) for as long as it lasts.
    raises  RecordingError where operations of one lane overlap, ConfigError above MAX_EVENTS.
    """
    if not sources:
        raise ConfigError("a trace needs at least one timeline")
    events: list[Event] = []
    for process, source in enumerate(sources, start=1):
        _check_serial(source.timeline)
        events.extend(_tracks(process, source.timeline.label))
        events.extend(_slices(process, source.timeline))
        events.extend(_arrows(process, source))
        events.extend(_waits(process, source))
    if len(events) > MAX_EVENTS:
        raise ConfigError(f"the trace would hold {len(events)} events, more than {MAX_EVENTS}: record fewer steps")
    return events


def write_trace(path: Path, sources: Sequence[TraceSource]) -> int:
    """Write a trace file in one step; returns its number of events.

    raises  what `trace_events` raises, OSError where the file cannot be written.
    """
    events = trace_events(sources)
    write_whole(path, json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":")) + "\n")
    return len(events)


def _check_serial(timeline: Timeline) -> None:
    for lane in Lane:
        for before, after in pairwise(timeline.lane(lane)):
            if after.start_ns < before.end_ns:
                raise RecordingError(
                    f"timeline={timeline.label!r}: {after.name!r} of step {after.step} starts at {after.start_ns} ns "
                    f"on lane {lane}, before {before.name!r} ends at {before.end_ns} ns: a lane runs one at a time"
                )


def _tracks(process: int, label: str) -> Iterator[Event]:
    yield _meta(process, 0, "process_name", name=label)
    yield _meta(process, 0, "process_sort_index", sort_index=process)
    for lane, thread in LANE_THREADS.items():
        yield _meta(process, thread, "thread_name", name=str(lane))
        yield _meta(process, thread, "thread_sort_index", sort_index=thread)


def _meta(process: int, thread: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slices(process: int, timeline: Timeline) -> Iterator[Event]:
    for span in timeline.spans:
        own = {"start_ns": span.start_ns, "end_ns": span.end_ns, "layer": span.layer, "step": span.step}
        yield {
            "ph": "X", "name": span.name, "cat": span.kind, "pid": process, "tid": LANE_THREADS[span.lane],
            "ts": span.start_ns / 1000, "dur": (span.end_ns - span.start_ns) / 1000, "args": {**span.args, **own},
        }  # fmt: skip


def _arrows(process: int, source: TraceSource) -> Iterator[Event]:
    """One flow for each layer and step whose blocks are moved: it starts, steps and finishes inside a slice."""
    spans = {(span.step, span.name): span for span in source.timeline.spans}
    steps = sorted({span.step for span in source.timeline.spans})
    number = 0
    for step in steps:
        for chain in _chains(source.plan):
            links = [spans[step, name] for name in chain if (step, name) in spans]
            if len(links) < len(chain):
                continue
            number += 1
            for phase, span in zip("stf", links, strict=True):
                yield _arrow(process, f"{process}.{number}", phase, span)


def _arrow(process: int, identity: str, phase: str, span: Span) -> Event:
    event: Event = {
        "ph": phase, "name": "blocks", "cat": "flow", "id": identity, "pid": process, "tid": LANE_THREADS[span.lane],
        "ts": (span.start_ns + span.end_ns) / 2000,
    }  # fmt: skip
    return {**event, "bp": "e"} if phase == "f" else event


def _chains(plan: StepPlan) -> list[tuple[str, str, str]]:
    """(selection, fetch, attention) by name, for each layer that fetches; the selection is a selector's last op."""
    runtime_kinds = set(Kind)
    chosen = {op.layer: op.name for op in plan if op.kind not in runtime_kinds}
    attended = {op.layer: op.name for op in plan if op.kind == Kind.ATTEND}
    return [
        (chosen[op.layer], op.name, attended[op.layer])
        for op in plan
        if op.kind == Kind.FETCH and op.layer in chosen and op.layer in attended
    ]


def _waits(process: int, source: TraceSource) -> Iterator[Event]:
    """The counter of exposed wait; its values sum to `exposed_wait_ns` of the whole timeline."""
    by_step = sorted(source.timeline.spans, key=lambda span: span.step)
    for _, group in groupby(by_step, key=lambda span: span.step):
        one = Timeline(label=source.timeline.label, spans=tuple(group))
        waits = exposed_wait_ns(one, source.plan)
        for span in one.spans:
            wait = waits.get(span.layer, 0) if span.kind == Kind.ATTEND else 0
            if wait:
                yield _counter(process, span.start_ns - wait, wait)
                yield _counter(process, span.start_ns, 0)


def _counter(process: int, at_ns: int, wait_ns: int) -> Event:
    return {"ph": "C", "name": "exposed wait", "pid": process, "tid": 0, "ts": at_ns / 1000, "args": {"ns": wait_ns}}
