"""Tracks, slices and arrows of a trace, as events of Chrome's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from sparda_core.errors import RecordingError
from sparda_core.plan import Kind, Lane, StepPlan
from sparda_core.spans import Span, Timeline
from sparda_core.trace_clock import microseconds

#: Thread id of each lane, the same in every trace.
LANE_THREADS: dict[Lane, int] = {lane: number for number, lane in enumerate(Lane, start=1)}
#: Arrows of one process before their numbers run into those of the next: more than any trace holds.
_ARROWS = 1 << 24

Event = dict[str, Any]


def check_serial(timeline: Timeline) -> None:
    """Raise RecordingError where operations of one lane overlap: a track of slices could not show them."""
    for lane in Lane:
        for before, after in pairwise(timeline.lane(lane)):
            if after.start_ns < before.end_ns:
                raise RecordingError(
                    f"timeline={timeline.label!r}: {after.name!r} of step {after.step} starts at {after.start_ns} ns "
                    f"on lane {lane}, before {before.name!r} ends at {before.end_ns} ns: a lane runs one at a time"
                )


def tracks(process: int, label: str) -> Iterator[Event]:
    """Names and order of a process and its lanes; a lane on which nothing runs has its track, too."""
    yield _meta(process, 0, "process_name", name=label)
    yield _meta(process, 0, "process_sort_index", sort_index=process)
    for lane, thread in LANE_THREADS.items():
        yield _meta(process, thread, "thread_name", name=str(lane))
        yield _meta(process, thread, "thread_sort_index", sort_index=thread)


def _meta(process: int, thread: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def slices(process: int, spans: Sequence[Span]) -> Iterator[tuple[int, Event]]:
    """(ns, slice) for each operation; `start_ns` and `end_ns` in its args are exact."""
    for span in spans:
        own = {"start_ns": span.start_ns, "end_ns": span.end_ns, "layer": span.layer, "step": span.step}
        yield span.start_ns, {
            "ph": "X", "name": span.name, "cat": str(span.kind), "pid": process, "tid": LANE_THREADS[span.lane],
            "ts": microseconds(span.start_ns), "dur": microseconds(span.end_ns - span.start_ns),
            "args": {**span.args, **own},
        }  # fmt: skip


def arrows(process: int, spans: Sequence[Span], plan: StepPlan, *, first: int) -> Iterator[tuple[int, Event]]:
    """(ns, flow event) along selection -> fetch -> attention of each layer whose blocks are moved in this step.

    first  number of the first arrow; no two arrows of a trace may share one
    The three lie inside their slices. Where one of the slices is missing (nothing was moved) or has no
    extent (nothing to point at), the layer has no arrow: a viewer never meets a loose end.
    """
    named = {span.name: span for span in spans}
    number = process * _ARROWS + first
    for chain in chains(plan):
        links = [named[name] for name in chain if name in named and named[name].end_ns > named[name].start_ns]
        if len(links) == len(chain):
            for phase, span in zip("stf", links, strict=True):
                yield _middle_ns(span), _arrow(process, number, phase, span)
            number += 1


def chains(plan: StepPlan) -> list[tuple[str, str, str]]:
    """(selection, fetch, attention) by name, for each layer that fetches; the selection is a selector's last op."""
    runtime_kinds = set(Kind)
    chosen = {op.layer: op.name for op in plan if op.kind not in runtime_kinds}
    attended = {op.layer: op.name for op in plan if op.kind == Kind.ATTEND}
    return [
        (chosen[op.layer], op.name, attended[op.layer])
        for op in plan
        if op.kind == Kind.FETCH and op.layer in chosen and op.layer in attended
    ]


def _middle_ns(span: Span) -> int:
    return (span.start_ns + span.end_ns) // 2


def _arrow(process: int, number: int, phase: str, span: Span) -> Event:
    # An integer: Perfetto reads an id in quotes as hexadecimal, and drops the arrow where it is none.
    event: Event = {
        "ph": phase, "name": "blocks", "cat": "flow", "id": number, "pid": process, "tid": LANE_THREADS[span.lane],
        "ts": microseconds(_middle_ns(span)),
    }  # fmt: skip
    return {**event, "bp": "e"} if phase == "f" else event
