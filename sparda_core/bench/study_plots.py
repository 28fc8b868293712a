"""Figures of a study: recall, KL, churn and misses by budget, and recall layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparda_core.bench.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sparda_core.evaluate.study.report import Report

FIGURE, LAYERS = "quality.png", "layers.png"
#: Misses that are not drawn: `last-selection` uses no more slots, and one selection's worth is the same for all.
_SAME = ("free blocks", "last-selection x2", "last-selection x4", "lru x1", "score x1")


def plot_study(report: Report, folder: Path) -> None:
    """Write the figures into `folder`; nothing where no window was measured."""
    if not report.documents:
        return
    figure = new_figure(15, 13)
    grid = figure.subplots(3, 2)
    figure.suptitle(
        f"{report.study['model']}, {len(report.study['windows'])} windows from {len(report.documents)} documents; "
        "bars: middle 95 % over documents", fontsize=11,
    )  # fmt: skip
    _lines(grid[0][0], report, "recall_oracle", "recall of the oracle's free blocks", chance=True)
    _lines(grid[0][1], report, "recall_query", "recall of query-driven selection's free blocks", chance=True)
    _lines(grid[1][0], report, "kl", "KL(dense || sparse), nats", log=True)
    _lines(grid[1][1], report, "kl", "KL / query-driven selection's", against="query")
    _lines(grid[2][0], report, "churn", "churn of free blocks")
    _misses(grid[2][1], report)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, ncols=6, loc="outside lower center")
    save_figure(figure, folder / FIGURE)
    _layers(report, folder / LAYERS)


def _lines(
    axes: Axes, report: Report, metric: str, title: str, *, against: str = "", log: bool = False, chance: bool = False
) -> None:
    for at, name in enumerate(report.names(metric)):
        if name == "random" and metric in ("churn", "kl"):  # far from all others, it would only stretch the scale
            continue
        found = [report.find(metric, name, b, against=against) for b in report.budgets(metric) if b]
        points = [f for f in found if f is not None]
        if not points:
            continue
        value = [f.estimate.value for f in points]
        below = [max(0.0, f.estimate.value - f.estimate.low) for f in points]
        above = [max(0.0, f.estimate.high - f.estimate.value) for f in points]
        x = [f.budget for f in points]
        axes.errorbar(
            x, value, yerr=[below, above], label=name, color=f"C{at % 10}", capsize=2, marker="o", markersize=3,
            linestyle=_style(at),
        )  # fmt: skip
    if chance:
        axes.plot(list(report.chance), list(report.chance.values()), ":", color="grey", label="chance")
    if against:
        axes.axhline(1, color="grey", linewidth=0.8)
    if log:
        axes.set_yscale("log")
    axes.set_xticks([budget for budget in report.budgets(metric) if budget])
    axes.set_xlabel("budget, blocks (forced ones included)")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)


def _style(at: int) -> str:
    # Ten colours, then the same ten dashed.
    return ("-", "--")[at // 10 % 2]


def _misses(axes: Axes, report: Report) -> None:
    """Misses at the middle budget: a group a method, a bar a policy and size."""
    budgets = sorted({f.budget for f in report.figures if f.metric == "misses"})
    if not budgets:
        axes.set_axis_off()
        return
    budget = budgets[len(budgets) // 2]
    known = dict.fromkeys(f.detail for f in report.figures if f.metric == "misses")
    details = [detail for detail in known if detail not in _SAME]
    names = [n for n in report.names("misses", details[0]) if n != "random"]
    for at, detail in enumerate(details):
        found = [report.find("misses", name, budget, detail=detail) for name in names]
        x = [i + at / (len(details) + 1) for i, f in enumerate(found) if f is not None]
        axes.bar(x, [f.estimate.value for f in found if f], width=1 / (len(details) + 1), label=detail)
    axes.set_xticks([i + 0.4 for i in range(len(names))], names, rotation=30, ha="right", fontsize=8)
    axes.set_title(f"blocks moved a step, layer and KV head, budget {budget}", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="y")


def _layers(report: Report, path: Path) -> None:
    budgets = report.budgets("recall_oracle")
    budget = budgets[len(budgets) // 2]
    figure = new_figure(15, 8)
    for axes, metric in zip(figure.subplots(2, 1), ("recall_oracle", "recall_query"), strict=True):
        for at, (name, table) in enumerate(report.layers[metric].items()):
            drawn = {"color": f"C{at % 10}", "linestyle": _style(at), "marker": "o", "markersize": 3}
            axes.plot(table[str(budget)], label=name, **drawn)
        axes.set_title(f"{metric.replace('_', ' of ')}, layer by layer, budget {budget}", fontsize=10)
        axes.set_xlabel("layer")
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, ncols=6, loc="outside lower center")
    save_figure(figure, path)
