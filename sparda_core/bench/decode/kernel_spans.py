"""From kernels that a profiler saw to spans of operations. Torch-free.

A graph does not know operations. So a step is profiled twice: issued one by one with a marker kernel before every
operation, which tells what each of them launches; and as graphs, whose kernels are then the same in the same order.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from sparda_core.errors import RecordingError
from sparda_core.plan import Lane, Op, StepPlan
from sparda_core.spans import Span, Timeline

#: How much two kernels of one lane may seem to overlap: the profiler's clock is coarse.
SLACK_NS = 2_000


@attrs.frozen(kw_only=True)
class Ran:
    """A kernel, copy or fill on the device: name, nanoseconds, and the stream that it was seen on."""

    name: str
    start_ns: int
    end_ns: int
    stream: int


def launches_of(ran: Sequence[Ran], plan: StepPlan, marker: str) -> dict[str, tuple[str, ...]]:
    """Operation -> names of what it launches, from one step with a kernel `marker` before every operation.

    Raises RecordingError where streams and lanes cannot be told from the number of markers.
    """
    lanes = {lane: plan.lane(lane) for lane in (Lane.COMPUTE, Lane.H2D) if plan.lane(lane)}
    streams: dict[int, list[Ran]] = {}
    for one in sorted(ran, key=lambda one: one.start_ns):
        streams.setdefault(one.stream, []).append(one)
    found: dict[str, tuple[str, ...]] = {}
    for stream, kernels in streams.items():
        starts = [at for at, one in enumerate(kernels) if marker in one.name]
        fitting = [lane for lane, ops in lanes.items() if len(ops) == len(starts)]
        if len(fitting) != 1 or starts[0] != 0:
            raise RecordingError(
                f"stream {stream} ran {len(kernels)} kernels with {len(starts)} markers, the first at "
                f"{starts[:1]}: want one marker before each operation of "
                + ", ".join(f"{lane} ({len(ops)})" for lane, ops in lanes.items())
            )
        bounds = pairwise((*starts, len(kernels)))
        for op, (start, stop) in zip(lanes[fitting[0]], bounds, strict=True):
            found[op.name] = tuple(one.name for one in kernels[start + 1 : stop])
    missing = [op.name for op in plan if op.name not in found]
    if missing:
        raise RecordingError(f"no stream ran {', '.join(missing[:5])}" + " ..." * (len(missing) > 5))
    return found


def timeline_of(
    ran: Sequence[Ran], plan: StepPlan, launches: Mapping[str, tuple[str, ...]], *, steps: int, early: bool = False
) -> Timeline:
    """Spans of `steps` whole steps. An operation that launches nothing stands, without length, after the one before.

    early  whether kernels start while the one ahead of them still runs, and wait for it (kernels/early.py): what an
           operation waits so is told as the one's before it
    A graph's kernels are told apart by name, not by stream: where a graph runs its branches is the driver's affair.
    Raises RecordingError where the kernels are not those of `launches`, in their order.
    """
    lanes = {lane: plan.lane(lane) for lane in (Lane.COMPUTE, Lane.H2D) if plan.lane(lane)}
    names = {lane: {name for op in ops for name in launches[op.name]} for lane, ops in lanes.items()}
    both = set.intersection(*names.values()) if len(names) > 1 else set()
    if both:
        raise RecordingError(f"both lanes launch {sorted(both)}: kernels of a graph cannot be told apart")
    kernels = sorted(ran, key=lambda one: one.start_ns)
    known = {name for lane in names.values() for name in lane}
    strange = sorted({one.name for one in kernels} - known)
    if strange:
        raise RecordingError(f"the graph ran {strange[:3]}, which no operation launches one by one")
    if not kernels:
        raise RecordingError("the profiler saw no kernel")
    spans: list[Span] = []
    for lane, ops in lanes.items():
        own = [one for one in kernels if one.name in names[lane]]
        spans += _lane_spans(own, ops, launches, steps=steps, origin_ns=kernels[0].start_ns, early=early)
    return Timeline(label="measured", spans=tuple(spans))


def _lane_spans(
    kernels: Sequence[Ran], ops: Sequence[Op], launches: Mapping[str, tuple[str, ...]], *, steps: int, origin_ns: int,
    early: bool,
) -> list[Span]:  # fmt: skip
    each = sum(len(launches[op.name]) for op in ops)
    if len(kernels) != each * steps:
        raise RecordingError(
            f"lane {ops[0].lane} ran {len(kernels)} kernels in {steps} steps; one by one a step launches {each}"
        )
    spans, at, now, least = [], 0, 0, 0
    for step in range(steps):
        for op in ops:
            want = launches[op.name]
            own, at = kernels[at : at + len(want)], at + len(want)
            got = tuple(one.name for one in own)
            if got != want:
                raise RecordingError(f"{op.name} of step {step} launched {got} in the graph, {want} one by one")
            start, end = (own[0].start_ns - origin_ns, own[-1].end_ns - origin_ns) if own else (now, now)
            if start < (least if early else now) - SLACK_NS:
                raise RecordingError(f"{op.name} of step {step} began {now - start} ns before the one before it ended")
            least = own[-1].start_ns - origin_ns if own else least
            start = max(start, now)
            now = max(end, start)
            spans.append(
                Span(name=op.name, kind=op.kind, layer=op.layer, lane=op.lane, start_ns=start, end_ns=now, step=step)
            )
    return spans


def step_s(timeline: Timeline, plan: StepPlan) -> float:
    """Median seconds from the start of a step to that of the next."""
    first = plan.ops[0].name
    starts = sorted(span.start_ns for span in timeline.spans if span.name == first)
    return statistics.median(b - a for a, b in pairwise(starts)) / 1e9
