"""Figures of a step from its timeline: one function a figure, for measured and simulated timelines alike. Torch-free.

Times of an operation are those of its span, launch gaps lie between spans, and everything is a mean over the steps.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.plan import Lane, StepPlan
from sparda_core.spans import Span, Timeline, exposed_wait_ns

NS = 1_000_000_000


@attrs.frozen(kw_only=True)
class StepFigures:
    """What a timeline says of a step. Seconds, and bytes per second; None where nothing was copied.

    step_s            from the start of a step to that of the next, see `step_time_s`
    tokens_per_s      of all rows
    compute_s         the compute lane at work
    copying_s         the h2d lane at work
    copy_bytes_per_s  bytes moved while it was
    exposed_s         what the compute lane waited for transfers, all layers
    hidden_share      of copying_s, what nobody waited for
    exposed_by_layer  the same by layer, of layers whose attention waits for a transfer
    by_kind           time of each kind of operation
    """

    step_s: float
    tokens_per_s: float
    compute_s: float
    copying_s: float
    copy_bytes_per_s: float | None
    exposed_s: float
    hidden_share: float | None
    exposed_by_layer: dict[int, float]
    by_kind: dict[str, float]

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return attrs.asdict(self)


def step_figures(timeline: Timeline, plan: StepPlan, *, rows: int, moved_bytes: float) -> StepFigures:
    """All figures of a timeline; `moved_bytes` are those of a mean step, which no timeline tells.

    Raises ConfigError for a timeline without spans.
    """
    step_s, layers = step_time_s(timeline, plan), exposed_by_layer_s(timeline, plan)
    copying_s = busy_s(timeline, Lane.H2D)
    return StepFigures(
        step_s=step_s, tokens_per_s=rows / step_s, compute_s=busy_s(timeline, Lane.COMPUTE), copying_s=copying_s,
        copy_bytes_per_s=moved_bytes / copying_s if copying_s else None, exposed_s=sum(layers.values()),
        hidden_share=hidden_share(timeline, plan), exposed_by_layer=layers, by_kind=by_kind_s(timeline),
    )  # fmt: skip


def step_time_s(timeline: Timeline, plan: StepPlan) -> float:
    """Median seconds from the start of a step to that of the next; of a lone step, from first start to last end.

    A lone step so lacks the gap before it: compare it with a lone step. Raises ConfigError where there is none.
    """
    steps = step_numbers(timeline)
    if len(steps) == 1:
        return timeline.duration_ns / NS
    first = plan.ops[0].name
    starts = sorted(span.start_ns for span in timeline.spans if span.name == first)
    if len(starts) != len(steps):
        raise ConfigError(f"timeline has {len(steps)} steps, of which {len(starts)} have {first!r}; want one in each")
    return statistics.median(after - before for before, after in itertools.pairwise(starts)) / NS


def step_numbers(timeline: Timeline) -> list[int]:
    """Numbers of a timeline's steps, ascending. Raises ConfigError where there is none."""
    steps = sorted({span.step for span in timeline.spans})
    if not steps:
        raise ConfigError(f"timeline {timeline.label!r} has no spans; a figure needs at least one step")
    return steps


def busy_s(timeline: Timeline, lane: Lane) -> float:
    """Seconds of a mean step in which at least one operation of the lane ran."""
    return timeline.busy_ns(lane) / NS / len(step_numbers(timeline))


def by_kind_s(timeline: Timeline) -> dict[str, float]:
    """Seconds of a mean step by kind of operation, whatever ran beside it; the longest first, then by name."""
    steps, total = len(step_numbers(timeline)), dict[str, int]()
    for span in timeline.spans:
        kind = str(span.kind)
        total[kind] = total.get(kind, 0) + span.end_ns - span.start_ns
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return {kind: ns / NS / steps for kind, ns in ordered}


def exposed_by_layer_s(timeline: Timeline, plan: StepPlan) -> dict[int, float]:
    """Seconds of a mean step that each layer's attention waited, by `exposed_wait_ns`; layers ascending."""
    steps = len(step_numbers(timeline))
    return {layer: ns / NS / steps for layer, ns in sorted(exposed_wait_ns(timeline, plan).items())}


def hidden_share(timeline: Timeline, plan: StepPlan) -> float | None:
    """Share of the copying that nobody waited for, in [0, 1]; None where nothing was copied.

    It says nothing of what the copying cost the operations beside it: see `slowdown_beside_copies`. Launch gaps
    before an attention count as waiting, on both sides of a comparison.
    """
    copying_s = busy_s(timeline, Lane.H2D)
    if not copying_s:
        return None
    return max(0.0, 1 - sum(exposed_by_layer_s(timeline, plan).values()) / copying_s)


def paired_hidden_share(*, sync_s: float, early_s: float, resident_s: float) -> float | None:
    """(sync - prefetch) / (sync - resident) of three step times; None where synchronous copies cost nothing."""
    return None if sync_s <= resident_s else (sync_s - early_s) / (sync_s - resident_s)


def slowdown_beside_copies(timeline: Timeline, alone: Timeline) -> float | None:
    """How many times as long compute takes while a copy runs as it takes alone; None where the two never meet.

    Of each operation, the part of its span that no copy ran beside is taken to have gone as fast as alone: so what
    is left of its time alone is what was done beside copies. Operations that `alone` lacks are left out.
    """
    want = _mean_ns(alone)
    copies = _merged(timeline.lane(Lane.H2D))
    beside_ns = done_ns = 0.0
    for span in timeline.lane(Lane.COMPUTE):
        if span.name not in want:
            continue
        met = _overlap_ns(span, copies)
        if met:
            beside_ns += met
            done_ns += want[span.name] - (span.end_ns - span.start_ns - met)
    return beside_ns / done_ns if done_ns > 0 else None


def _mean_ns(timeline: Timeline) -> dict[str, float]:
    lengths: dict[str, list[int]] = {}
    for span in timeline.lane(Lane.COMPUTE):
        lengths.setdefault(span.name, []).append(span.end_ns - span.start_ns)
    return {name: statistics.fmean(each) for name, each in lengths.items()}


def _merged(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """(start, end) of stretches in which at least one of the spans ran, ascending."""
    made: list[tuple[int, int]] = []
    for span in spans:
        if made and span.start_ns <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], span.end_ns)
        else:
            made.append((span.start_ns, span.end_ns))
    return made


def _overlap_ns(span: Span, stretches: Sequence[tuple[int, int]]) -> int:
    return sum(max(0, min(span.end_ns, end) - max(span.start_ns, start)) for start, end in stretches)
