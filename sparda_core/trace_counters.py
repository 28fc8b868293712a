"""Counters of a trace: what each resource gives over time, and how long attention waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from sparda_core.plan import Kind, StepPlan
from sparda_core.spans import Timeline, exposed_wait_ns
from sparda_core.trace_clock import microseconds

#: Resource -> (counter, series): the tracks that a viewer shows for whatever a simulation tells of.
COUNTERS: dict[str, tuple[str, str]] = {
    "sms_compute": ("SMs held", "compute"),
    "sms_copy": ("SMs held", "copies"),
    "hbm": ("HBM", "bytes/s"),
    "h2d": ("PCIe h2d", "bytes/s"),
    "d2h": ("PCIe d2h", "bytes/s"),
    "host": ("host memory", "bytes/s"),
}
WAIT = "exposed wait"


@attrs.frozen
class Usage:
    """Units per second (SMs: units) that each resource gives from `at_ns` on, until the next of its kind."""

    at_ns: int
    step: int
    taken: Mapping[str, float]


def settled(usage: Iterable[Usage]) -> tuple[Usage, ...]:
    """What held for longer than an instant: the last of several at one time, and no repetitions."""
    kept: list[Usage] = []
    for one in usage:
        if kept and kept[-1].at_ns == one.at_ns:
            kept.pop()
        if not kept or kept[-1].taken != one.taken or kept[-1].step != one.step:
            kept.append(one)
    return tuple(kept)


def integral(usage: Sequence[Usage], resource: str) -> float:
    """Units that `resource` gave from the first to the last entry: bytes for a rate in bytes per second."""
    return sum(a.taken.get(resource, 0.0) * (b.at_ns - a.at_ns) for a, b in pairwise(usage)) / 1e9


def resource_counters(process: int, usage: Sequence[Usage]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(ns, counter event) wherever a value changes; a counter of several series always names all of them."""
    stands: dict[str, dict[str, float]] = {}
    for one in usage:
        now: dict[str, dict[str, float]] = {}
        for resource, (counter, series) in COUNTERS.items():
            if resource in one.taken:
                now.setdefault(counter, {})[series] = one.taken[resource]
        for counter, values in now.items():
            if stands.get(counter) != values:
                stands[counter] = values
                yield one.at_ns, counter_event(process, counter, one.at_ns, values)


def wait_counters(process: int, timeline: Timeline, plan: StepPlan) -> Iterator[tuple[int, dict[str, Any]]]:
    """(ns, counter event): it stands at a layer's exposed wait for as long as that lasts, else at 0.

    timeline  of one step; the values sum to its `exposed_wait_ns`
    """
    waits = exposed_wait_ns(timeline, plan)
    for span in timeline.spans:
        wait_ns = waits.get(span.layer, 0) if span.kind == Kind.ATTEND else 0
        if wait_ns:
            for at_ns, value in ((span.start_ns - wait_ns, wait_ns), (span.start_ns, 0)):
                yield at_ns, counter_event(process, WAIT, at_ns, {"ns": value})


def counter_event(process: int, name: str, at_ns: int, values: Mapping[str, float]) -> dict[str, Any]:
    """One value of a counter, as the trace format wants it."""
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": microseconds(at_ns), "args": dict(values)}
