"""What a trace's metadata says: a legend, and where each timeline comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparda_core.trace_counters import COUNTERS, WAIT
from sparda_core.trace_parts import Event
from sparda_core.trace_source import StepPart, TraceSource

LEGEND: dict[str, str] = {
    "processes": "one a timeline: odd ids were measured, even ids predicted",
    "threads": "lanes of the plan; operations of one lane run in the order written, lanes run side by side",
    "slices": "one operation each; ts and dur are microseconds, start_ns and end_ns in args exact nanoseconds",
    "args": (
        "layer (-1: the whole model) and step; predicted ones also: gap_ns, the launch before the slice; launches_ns, "
        "launches inside it; hbm, link (bytes), flops or time (seconds): what it asked for, and with _ns how long "
        "that took; sms: SMs that a copy held"
    ),
    "arrows": "select -> fetch -> attend of a layer whose blocks were moved in this step; one id each",
    WAIT: "ns from the end of the operation before an attention to its start, launch included, over just that time",
    "SMs held": "SMs that kernels of the compute lane hold, and SMs that copies hold",
    "HBM": "bytes of device memory read and written per second, by compute and copies together",
    "PCIe h2d": "payload per second, host to device, over whatever links the two (on a CPU: the emulated link)",
    "PCIe d2h": "payload per second, device to host: what is written through to the host store",
    "host memory": "bytes of host memory per second; a block gathered by the CPU passes three times",
}


def legend(events: Sequence[Event]) -> dict[str, str]:
    """LEGEND without counters that these events do not hold."""
    counters = {event["name"] for event in events if event["ph"] == "C"}
    every = {WAIT, *(counter for counter, _ in COUNTERS.values())}
    return {name: text for name, text in LEGEND.items() if name not in every or name in counters}


def told_of(
    process: int, source: TraceSource, drawn: Sequence[StepPart], *, steps: int, most: int
) -> dict[str, Any]:
    """One timeline of the metadata: its process, plan, steps that are drawn, and the source's own notes."""
    plan = source.plan
    told: dict[str, Any] = {
        "pid": process, "label": source.timeline.label, "origin": str(source.origin), "selector": plan.selector,
        "runtime": plan.runtime, "engine": plan.engine, "steps": steps, "steps_drawn": [one.number for one in drawn],
    }  # fmt: skip
    if len(drawn) < steps:
        told["steps_left_out"] = f"{steps - len(drawn)} of {steps}: a trace holds at most {most} events"
    return {**told, **source.notes}
