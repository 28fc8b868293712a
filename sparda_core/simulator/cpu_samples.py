"""Samples for a CPU profile, read off measured timelines: operations alone, beside a busy lane, and the gaps."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs

from sparda_core.errors import RecordingError
from sparda_core.facts import StepFacts
from sparda_core.plan import Lane, StepPlan
from sparda_core.simulator.cpu import cost_key
from sparda_core.simulator.run import WorkOfOp
from sparda_core.spans import Span, Timeline
from sparda_core.work import Work

#: Below the first share of its time beside a busy lane a span counts as alone, from the second on as beside it.
ALONE_SHARE, BESIDE_SHARE = 0.02, 0.5


@attrs.frozen(kw_only=True)
class Sample:
    """One measured operation.

    key      as `cost_key` makes it
    seconds  how long it took
    busy     share of that time in which the other lane was busy, in [0, 1]
    """

    key: str
    work: Work
    seconds: float
    busy: float = 0.0


@attrs.frozen(kw_only=True)
class CpuSamples:
    """Samples of one or more timelines; add them up with `+`.

    alone, beside  operations with the other lane idle, and with it busy for most of their time
    gaps_s         from one operation of the compute lane to the next, where nothing was waited for
    wakes_s        from the end of a transfer to the operation that waited for it
    starts_s       from the operation that made a transfer known to the transfer's start
    between_s      of each step, what lies outside its operations
    """

    alone: tuple[Sample, ...] = ()
    beside: tuple[Sample, ...] = ()
    gaps_s: tuple[float, ...] = ()
    wakes_s: tuple[float, ...] = ()
    starts_s: tuple[float, ...] = ()
    between_s: tuple[float, ...] = ()

    def __add__(self, other: CpuSamples) -> CpuSamples:
        return CpuSamples(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in attrs.fields(CpuSamples)})

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The samples that JSON holds as `attrs.asdict` told them."""
        told = {name: tuple(values) for name, values in plain.items()}
        for name in ("alone", "beside"):
            told[name] = tuple(Sample(**{**one, "work": Work(**one["work"])}) for one in told[name])
        return cls(**told)


def samples_of(
    timeline: Timeline, plan: StepPlan, facts: StepFacts | Sequence[StepFacts], work_of_op: WorkOfOp
) -> CpuSamples:
    """Samples from a measured timeline of `plan`.

    facts  of the timeline's step, or one for each of its steps
    Measure without an emulated link: a lane that sleeps to a schedule is busy on paper only.
    Raises RecordingError where a span belongs to no operation of the plan or to no facts.
    """
    every = [facts] if isinstance(facts, StepFacts) else list(facts)
    ops = {op.name: op for op in plan.ops}
    alone, beside = [], []
    # By whether the span is compute: when the other side was busy.
    others = {side: _Busy([s for s in timeline.spans if (s.lane == Lane.COMPUTE) != side]) for side in (True, False)}
    for span in timeline.spans:
        if span.name not in ops or not 0 <= span.step < len(every):
            raise RecordingError(
                f"span {span.name!r} of step {span.step} belongs to no operation of the plan, "
                f"or to none of the {len(every)} facts"
            )
        work = work_of_op(ops[span.name], every[span.step])
        length_ns = span.end_ns - span.start_ns
        if not length_ns or (span.lane != Lane.COMPUTE and not work.h2d_bytes):
            continue
        busy = others[span.lane == Lane.COMPUTE].within(span) / length_ns
        key = cost_key(plan.phase, plan.selector, span.kind)
        sample = Sample(key=key, work=work, seconds=length_ns / 1e9, busy=busy)
        if busy <= ALONE_SHARE:
            alone.append(sample)
        elif busy >= BESIDE_SHARE:
            beside.append(sample)
    gaps, wakes, starts = _gaps(timeline, plan)
    return CpuSamples(
        alone=tuple(alone), beside=tuple(beside), gaps_s=tuple(gaps), wakes_s=tuple(wakes), starts_s=tuple(starts)
    )


class _Busy:
    """When the lanes of one side (compute, or transfers) were busy; `within` in O(log n)."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = []  # busy nanoseconds before each interval
        for span in sorted(spans, key=lambda span: span.start_ns):
            if self._ends and span.start_ns <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], span.end_ns)
                continue
            self._before.append(self._until(self._ends[-1]) if self._ends else 0)
            self._starts.append(span.start_ns)
            self._ends.append(span.end_ns)

    def within(self, span: Span) -> int:
        """Busy nanoseconds inside a span."""
        return self._until(span.end_ns) - self._until(span.start_ns)

    def _until(self, at_ns: int) -> int:
        i = bisect.bisect_right(self._starts, at_ns) - 1
        return 0 if i < 0 else self._before[i] + min(at_ns, self._ends[i]) - self._starts[i]


def _gaps(timeline: Timeline, plan: StepPlan) -> tuple[list[float], list[float], list[float]]:
    """Seconds before operations: of the compute lane without and with waiting, and of transfers."""
    ends = {(span.step, span.name): span.end_ns for span in timeline.spans}
    after = {op.name: op.after for op in plan.ops}
    gaps: list[float] = []
    wakes: list[float] = []
    starts: list[float] = []
    for lane in Lane:
        last: Span | None = None
        for here in timeline.lane(lane):
            free_ns = last.end_ns if last is not None and last.step == here.step else None
            known = [ends[here.step, name] for name in after[here.name] if (here.step, name) in ends]
            last = here
            if lane != Lane.COMPUTE:
                starts += [_seconds(here.start_ns, max(*known, free_ns or 0))] if known else []
            elif free_ns is not None:
                waited = max(known, default=0) > free_ns
                (wakes if waited else gaps).append(_seconds(here.start_ns, max(free_ns, *known, 0)))
    return gaps, wakes, starts


def _seconds(start_ns: int, ready_ns: int) -> float:
    return max(0, start_ns - ready_ns) / 1e9
