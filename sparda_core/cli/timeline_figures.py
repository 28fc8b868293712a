"""What `sparda timeline` says of a trace in words: means of a step, and counters over the whole of it."""

from __future__ import annotations

from typing import Any

from sparda_core.cli.screen import size
from sparda_core.plan import Lane
from sparda_core.spans import exposed_wait_ns
from sparda_core.trace import TraceSource
from sparda_core.trace_counters import COUNTERS, integral


def figures(source: TraceSource) -> dict[str, float]:
    """Steps, and seconds of a mean step: from first start to last end, busy lanes, exposed wait."""
    timeline = source.timeline
    steps = len({span.step for span in timeline.spans})
    per_step = 1e9 * max(1, steps)
    return {
        "steps": steps,
        "step_s": timeline.duration_ns / per_step,
        "compute_s": timeline.busy_ns(Lane.COMPUTE) / per_step,
        "transfer_s": timeline.busy_ns(Lane.H2D) / per_step,
        "exposed_s": sum(exposed_wait_ns(timeline, source.plan).values()) / per_step,
    }


def counter_rows(source: TraceSource) -> dict[str, dict[str, Any]]:
    """By counter: mean and peak in its unit, and what it sums to over the trace (bytes; SMs: SM-seconds)."""
    usage = source.usage
    long_s = (usage[-1].at_ns - usage[0].at_ns) / 1e9 if usage else 0.0
    rows = {}
    for resource, (counter, series) in COUNTERS.items():
        values = [one.taken[resource] for one in usage if resource in one.taken]
        if not values or not long_s:
            continue
        held = counter == COUNTERS["sms_copy"][0]
        total = integral(usage, resource)
        rows[f"{counter}, {series}" if held else counter] = {
            "unit": "SMs" if held else series, "mean": total / long_s, "peak": max(values), "total": total,
        }  # fmt: skip
    return rows


def counter_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """Mean, peak and total as a table shows them."""
    if row["unit"] == "SMs":
        return f"{row['mean']:.4g} SMs", f"{row['peak']:.4g} SMs", f"{row['total']:.4g} SM s"
    return f"{size(row['mean'])}/s", f"{size(row['peak'])}/s", size(row["total"])
