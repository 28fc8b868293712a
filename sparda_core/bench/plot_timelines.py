"""The timeline figure: one step as it was measured and as it was predicted, synchronous and with prefetch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.bench.plots import BLUE, GREEN, GREY, ORANGE, RED, SKY, headline, new_figure, save_figure
from sparda_core.bench.report import CompareReport
from sparda_core.bench.timelines import timeline_from_plain
from sparda_core.plan import Kind, Lane
from sparda_core.spans import Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUPS = {
    "projections, feed-forward, head": (SKY, {Kind.EMBED, Kind.PROJECT, Kind.OUTPUT, Kind.MLP, Kind.HEAD}),
    "cache upkeep": (GREY, {Kind.ENTRIES, Kind.APPEND}),
    "attention": (BLUE, {Kind.ATTEND}),
    "transfer": (ORANGE, {Kind.FETCH, Kind.STAGE}),
}
#: Kinds of selectors are their own; diff belongs to selecting.
_SELECTING = ("selecting", GREEN)


def plot_timelines(report: CompareReport, path: Path) -> None:
    """Draw the same step of each run, on one time axis: the one of median length where blocks were prefetched."""
    drawn = [
        (f"{kind}\n{name}", timeline_from_plain(run[kind]))
        for name, run in report.timelines["runs"].items()
        for kind in ("measured", "predicted")
        if kind in run
    ]
    judged = next(t for label, t in reversed(drawn) if label.startswith("measured"))
    title = f"One decode step of {report.timelines['label']}: {headline(report)}"
    draw_timelines(drawn, path, title=title, judged=judged)


def draw_timelines(
    drawn: Sequence[tuple[str, Timeline]], path: Path, *, title: str, judged: Timeline | None = None
) -> None:
    """Draw the same step of each (label, timeline) on one time axis: the one of median length in `judged`.

    judged  None: the last one drawn
    """
    figure = new_figure(15, 1.1 + 1.5 * len(drawn))
    every = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    number = _median_step(drawn[-1][1] if judged is None else judged)
    for axes, (label, timeline) in zip(every, drawn, strict=True):
        _draw_step(axes, timeline, number)
        axes.set_ylabel(label, fontsize=9)
    every[-1].set_xlabel("time from the start of the step, ms")
    _legend(every[0])
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def _median_step(timeline: Timeline) -> int:
    ends: dict[int, list[int]] = {}
    for span in timeline.spans:
        ends.setdefault(span.step, []).extend((span.start_ns, span.end_ns))
    ordered = sorted(ends, key=lambda step: max(ends[step]) - min(ends[step]))
    return ordered[len(ordered) // 2]


def _draw_step(axes: Axes, timeline: Timeline, number: int) -> None:
    spans = [span for span in timeline.spans if span.step == number]
    origin = min(span.start_ns for span in spans)
    for height, lane in ((1, Lane.COMPUTE), (0, Lane.H2D)):
        mine = [span for span in spans if span.lane == lane]
        for colour in {_colour(span) for span in mine}:
            bars = [_extent(span, origin) for span in mine if _colour(span) == colour]
            axes.broken_barh(bars, (height - 0.38, 0.76), facecolors=colour, edgecolor="white", linewidth=0.15)
    waits = _waits([span for span in spans if span.lane == Lane.COMPUTE])
    axes.broken_barh(
        [((start - origin) / 1e6, (end - start) / 1e6) for start, end in waits], (0.62, 0.76),
        facecolors="none", edgecolor=RED, hatch="////", linewidth=0.4,
    )  # fmt: skip
    total_ms = (max(span.end_ns for span in spans) - origin) / 1e6
    axes.axvline(total_ms, color="black", linewidth=0.8)
    axes.text(total_ms, 1.5, f" {total_ms:.3g} ms", fontsize=8, va="center")
    axes.set_yticks((1, 0), ("compute", "copy"), fontsize=8)
    axes.set_ylim(-0.6, 1.7)


def _waits(compute: list[Span]) -> list[tuple[int, int]]:
    """Where the compute lane stood still before an attention."""
    pairs = itertools.pairwise(compute)
    return [(a.end_ns, b.start_ns) for a, b in pairs if b.kind == Kind.ATTEND and b.start_ns > a.end_ns]


def _extent(span: Span, origin_ns: int) -> tuple[float, float]:
    return (span.start_ns - origin_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6


def _colour(span: Span) -> str:
    return next((colour for colour, kinds in _GROUPS.values() if span.kind in kinds), _SELECTING[1])


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, (colour, _) in _GROUPS.items()]
    patches.append(Patch(color=_SELECTING[1], label=_SELECTING[0]))
    patches.append(Patch(facecolor="none", edgecolor=RED, hatch="////", label="compute waits"))
    axes.legend(handles=patches, fontsize=8, ncols=6, loc="lower left", bbox_to_anchor=(0, 1.02), frameon=False)
