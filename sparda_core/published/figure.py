"""The published table against its prediction, as a figure. Loads matplotlib when called."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.files import write_whole
from sparda_core.published.report import Report
from sparda_core.published.table import BATCHES, Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that stay apart for colour-blind readers and in grey.
COLOURS = {Mode.RESIDENT: "#8C8C8C", Mode.SYNC: "#E69F00", Mode.NO_PREFETCH: "#56B4E9", Mode.PREFETCH: "#0072B2"}

#: Tokens per second on the axes of the right half.
TICKS = (200, 400, 800, 1600)


def plot(report: Report, path: Path, *, title: str) -> None:
    """Write a PNG, all or nothing: tokens/s by batch and mode, and predicted over published."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5), dpi=130, layout="constrained")
    bars, scatter = figure.subplots(1, 2, width_ratios=(1.7, 1))
    figure.suptitle(title, fontsize=10)
    _bars(bars, report)
    _scatter(scatter, report)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def _bars(axes: Axes, report: Report) -> None:
    found = {(r.cell.batch, r.cell.mode): r for r in report.results}
    width = 0.2
    for at, mode in enumerate(Mode):
        for place, batch in enumerate(BATCHES):
            result, x = found[batch, mode], place + (at - 1.5) * width
            label = str(mode) if not place else None
            published, predicted = result.cell.tokens_per_s, result.tokens_per_s
            axes.bar(x, published or 0, width * 0.9, color=COLOURS[mode], label=label)
            if predicted is not None:
                hollow = published is None
                axes.plot(x, predicted, "kD", markersize=5, fillstyle="none" if hollow else "full")
            if result.cell.out_of_memory:
                axes.annotate("oom", (x, 0), ha="center", va="bottom", fontsize=7, rotation=90)
    axes.plot([], [], "kD", markersize=5, label="predicted (hollow: no time published)")
    axes.plot([], [], " ", label="oom: published as out of memory")
    axes.set_xticks(range(len(BATCHES)), [str(batch) for batch in BATCHES])
    axes.set_xlabel("batch")
    axes.set_ylabel("decode tokens/s")
    axes.legend(fontsize=8)


def _scatter(axes: Axes, report: Report) -> None:
    from matplotlib.ticker import FixedLocator

    span = (130.0, 1700.0)
    axes.plot(span, span, color="black", linewidth=0.8)
    axes.fill_between(
        span, [0.8 * s for s in span], [1.2 * s for s in span], color="black", alpha=0.08, label="within 20 %"
    )
    for result in report.results:
        published, predicted = result.cell.tokens_per_s, result.tokens_per_s
        if published is None or predicted is None:
            continue
        fitted = (result.cell.batch, result.cell.mode) == report.fitted
        marker = "*" if fitted else "o"
        axes.plot(published, predicted, marker, color=COLOURS[result.cell.mode], markersize=11 if fitted else 6)
        above = result.cell.mode == Mode.PREFETCH
        axes.annotate(
            str(result.cell.batch), (published, predicted), fontsize=7, xytext=(-5, 5) if above else (5, -5),
            textcoords="offset points", ha="right" if above else "left", va="bottom" if above else "top",
        )  # fmt: skip
    if report.fitted is not None:
        axes.plot([], [], "*", color=COLOURS[report.fitted[1]], markersize=11, label="fitted to this cell")
    for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
        scale("log", base=2)
        axis.set_major_locator(FixedLocator(TICKS))
        axis.set_major_formatter("{x:.0f}")
    axes.set_title("numbers: batch", fontsize=8)
    axes.set_xlabel("published tokens/s")
    axes.set_ylabel("predicted tokens/s")
    axes.legend(fontsize=8)
