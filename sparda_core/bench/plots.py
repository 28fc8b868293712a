"""The comparison figure: quality against step time, what a step is spent on, recall, and the 8B shape on GPUs."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparda_core.bench.report import CompareReport
from sparda_core.errors import ConfigError
from sparda_core.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that stay apart for colour-blind readers and in grey (after Okabe and Ito's palette).
BLUE, ORANGE, GREEN, RED, GREY, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8C8C8C", "#56B4E9"
RUNTIME_COLOURS = {"resident": GREY, "offload-sync": ORANGE, "offload-prefetch": BLUE}
#: Point of the GPU grid that is drawn; the report has all of them.
GPU_POINT = {"batch": 16, "churn": 0.10}


def require_matplotlib() -> None:
    """Raise ConfigError naming the extra where figures cannot be drawn: better before a long run than after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib is not installed, so no figure can be drawn; install it with `pip install sparda[plot]`"
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that needs no display."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, all or nothing."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def plot_comparison(report: CompareReport, path: Path) -> None:
    """Draw the comparison."""
    figure = new_figure(15, 10.5)
    (quality, steps), (recall, gpus) = figure.subplots(2, 2)
    figure.suptitle(headline(report), fontsize=11)
    _quality_against_time(quality, report)
    _step_bars(steps, report)
    _recall_bars(recall, report)
    _gpu_bars(gpus, report)
    save_figure(figure, path)


def headline(report: CompareReport) -> str:
    """What was read, where it ran, and that the link is emulated."""
    machine = report.provenance["machine"]
    return (
        f"{report.text['name']}, {report.text['tokens']:,} tokens, budget {report.config['spec']['budget']} blocks, "
        f"batch {report.config['batch']}\n"
        f"{machine['cpu']}, {machine['cores']} cores; link emulated at {report.link['bytes_per_s'] / 1e9:.2g} GB/s"
    )


def emulated(report: CompareReport) -> list[dict[str, Any]]:
    """Timing rows that were measured over the emulated link, or beside such."""
    return [row for row in report.timing if row["paired_with"] == "emulated"]


def _quality_against_time(axes: Axes, report: CompareReport) -> None:
    """One point a selector: the fastest runtime that offloads, or resident where none fits."""
    loss = {row["label"]: row["kl"] for row in report.quality}
    floor = min((kl for kl in loss.values() if kl > 1e-6), default=1e-3) / 4
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(emulated(report), key=lambda row: (row["runtime"] == "resident", row["step_s"])):
        best.setdefault(row["label"], row)
    # Names go above and below in turns, so that neighbours stay readable.
    for turn, (label, row) in enumerate(sorted(best.items(), key=lambda item: item[1]["step_s"])):
        x, y = row["step_s"] * 1e3, max(loss[label], floor)
        axes.plot(x, y, "o", color=RUNTIME_COLOURS[row["runtime"]], markersize=9)
        note = f"{label} (0)" if loss[label] <= 1e-6 else label
        axes.annotate(note, (x, y), xytext=(7, 5 if turn % 2 else -11), textcoords="offset points", fontsize=9)
    for runtime, colour in RUNTIME_COLOURS.items():
        axes.plot([], [], "o", color=colour, label=runtime)
    axes.set_yscale("log")
    axes.set_xlabel("measured step time, ms")
    axes.set_ylabel("KL(dense || sparse), nats per token")
    axes.set_title("Quality against step time (fastest offloading runtime; left and low is better)", fontsize=10)
    axes.margins(x=0.18)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _step_bars(axes: Axes, report: CompareReport) -> None:
    """Step time of every pair over the emulated link: what a resident step takes, and what comes on top."""
    rows = emulated(report)
    resident = {row["label"]: row["step_s"] for row in rows if row["runtime"] == "resident"}
    for at, row in enumerate(rows):
        base = min(row["step_s"], resident[row["label"]]) * 1e3
        extra = row["step_s"] * 1e3 - base
        axes.barh(at, base, color=GREY, height=0.7)
        axes.barh(at, extra, left=base, color=RED, height=0.7)
        axes.text(row["step_s"] * 1e3, at, f" {row['step_s'] * 1e3:.0f}", va="center", fontsize=7)
        predicted = row.get("predicted_step_s")
        if predicted:
            axes.plot(predicted * 1e3, at, "|", color="black", markersize=9, markeredgewidth=1.6)
    axes.set_yticks(range(len(rows)), [f"{row['label']}  {row['runtime']}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.barh([0], [0], color=GREY, label="as long as resident")
    axes.barh([0], [0], color=RED, label="on top of that")
    axes.plot([], [], "|", color="black", markersize=9, label="predicted for this machine")
    axes.set_xlabel("step time, ms (median)")
    axes.set_title("What a step takes here, over the emulated link", fontsize=10, pad=24)
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
    axes.grid(axis="x", alpha=0.3)


def _recall_bars(axes: Axes, report: CompareReport) -> None:
    rows = [row for row in report.quality if row["recall_query"] is not None]
    for shift, (name, colour) in enumerate((("query", BLUE), ("oracle", GREEN))):
        places = [at + (shift - 0.5) * 0.38 for at in range(len(rows))]
        values = [row[f"recall_{name}"] or 0 for row in rows]
        axes.bar(places, values, width=0.36, color=colour, label=f"against {name}")
        for x, value in zip(places, values, strict=True):
            axes.text(x, value + 0.01, f"{value:.2f}", ha="center", fontsize=7)
    chance = next((row["chance_query"] for row in rows if row["chance_query"] is not None), None)
    if chance is not None:
        axes.axhline(chance, color=RED, linestyle="--", linewidth=1, label=f"chance, {chance:.2f}")
    axes.set_xticks(range(len(rows)), [row["label"] for row in rows], rotation=20, ha="right", fontsize=8)
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("recall of free blocks")
    axes.set_title("Recall: share of the reference's free blocks that were selected", fontsize=10)
    axes.legend(fontsize=8, loc="upper right", ncols=3)
    axes.grid(axis="y", alpha=0.3)


def _gpu_bars(axes: Axes, report: CompareReport) -> None:
    rows = [row for row in report.gpus if all(row[name] == value for name, value in GPU_POINT.items())]
    for at, row in enumerate(rows):
        if row["step_s"] is None:
            axes.text(0, at, " does not fit in memory", va="center", fontsize=7, color=RED)
            continue
        exposed = row["exposed_s"] * 1e3
        axes.barh(at, row["step_s"] * 1e3 - exposed, color=SKY, height=0.7)
        axes.barh(at, exposed, left=row["step_s"] * 1e3 - exposed, color=RED, height=0.7)
        axes.text(row["step_s"] * 1e3, at, f" {row['step_s'] * 1e3:.1f}", va="center", fontsize=7)
    names = [f"{row['profile']}  {row['selector']}  {row['runtime']}  {_engine(row)}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.invert_yaxis()
    axes.barh([0], [0], color=SKY, label="compute")
    axes.barh([0], [0], color=RED, label="exposed transfer")
    shape, context = (rows[0]["shape"], rows[0]["context"]) if rows else ("", 0)
    axes.set_xlabel("predicted step time, ms")
    axes.set_title(
        f"Predicted: {shape}, {context // 1024}K tokens, batch {GPU_POINT['batch']}, churn {GPU_POINT['churn']:.0%}",
        fontsize=10, pad=24,
    )  # fmt: skip
    axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    axes.grid(axis="x", alpha=0.3)


def _engine(row: dict[str, Any]) -> str:
    return "" if row["runtime"] == "resident" else row["engine"]
