"""Traces: timelines as Chrome JSON, which the Perfetto viewer and chrome://tracing open.

Measured and predicted timelines get the same tracks, so that they can be laid one above the other: a
process for each timeline, in it one thread for each lane, in fixed order. `ts` and `dur` are
microseconds, as the format wants; the exact integer nanoseconds are in `args`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparda_core.errors import ConfigError
from sparda_core.files import write_whole
from sparda_core.plan import StepPlan
from sparda_core.trace_counters import resource_counters, wait_counters
from sparda_core.trace_legend import legend, told_of
from sparda_core.trace_parts import Event, arrows, check_serial, slices, tracks
from sparda_core.trace_source import Origin, StepPart, TraceSource, by_step, steps_that_fit

__all__ = ["MAX_EVENTS", "Origin", "TraceSource", "trace_document", "trace_events", "write_trace"]

#: Viewers stay quick up to about here; 64 steps of 32 layers with their counters are 150,000 events.
MAX_EVENTS = 300_000


def trace_events(sources: Sequence[TraceSource]) -> list[Event]:
    """Events of Chrome's trace format, a process for each timeline; see `trace_document`."""
    events: list[Event] = trace_document(sources)["traceEvents"]
    return events


def trace_document(sources: Sequence[TraceSource]) -> dict[str, Any]:
    """A trace as one JSON object of Chrome's format.

    For each timeline: names of its tracks, a slice an operation, flow arrows along selection -> fetch ->
    attention of every layer, counters of the resources that were watched, and one that stands at a
    layer's exposed wait (ns) for as long as it lasts. Events of a timeline are in order of time.
    Measured timelines are processes 1, 3, ..., predicted ones 2, 4, ..., in any file.
    Above MAX_EVENTS only some steps are drawn, evenly spread with the first and the last among them;
    `otherData` says which, beside a legend.

    raises  RecordingError where operations of one lane overlap, ConfigError where one step exceeds MAX_EVENTS.
    """
    if not sources:
        raise ConfigError("a trace needs at least one timeline")
    for source in sources:
        check_serial(source.timeline)
    split = [by_step(source) for source in sources]
    kept = steps_that_fit(sources, split, MAX_EVENTS)
    events: list[Event] = []
    told = []
    met = dict.fromkeys(Origin, 0)
    for source, steps in zip(sources, split, strict=True):
        process = 2 * met[source.origin] + (1 if source.origin == Origin.MEASURED else 2)
        met[source.origin] += 1
        events += tracks(process, source.timeline.label)
        drawn = [steps[number] for number in kept if number in steps]
        events += _in_order(process, source.plan, drawn)
        told.append(told_of(process, source, drawn, steps=len(steps), most=MAX_EVENTS))
    other = {"legend": legend(events), "timelines": told}
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}


def write_trace(path: Path, sources: Sequence[TraceSource]) -> int:
    """Write a trace file in one step; returns its number of events.

    raises  what `trace_document` raises, OSError where the file cannot be written.
    """
    document = trace_document(sources)
    write_whole(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
    return len(document["traceEvents"])


def _in_order(process: int, plan: StepPlan, drawn: Sequence[StepPart]) -> Iterator[Event]:
    """Slices, arrows and counters of the steps by time; at one time slices first, for arrows to lie in."""
    flows = 0
    for step in drawn:
        spans = step.timeline.spans
        pointing = list(arrows(process, spans, plan, first=flows))
        flows += len(pointing) // 3
        every = [
            *slices(process, spans), *pointing, *resource_counters(process, step.usage),
            *wait_counters(process, step.timeline, plan),
        ]  # fmt: skip
        yield from (event for _, event in sorted(every, key=lambda item: item[0]))
