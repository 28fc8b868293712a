"""Figures of a verdict: measured against predicted, and every model's errors. Loads matplotlib when called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparda_core.bench.plots import BLUE, GREEN, GREY, ORANGE, RED, SKY, new_figure, save_figure
from sparda_core.bench.verdict.judged import HOST, Judged, Verdict
from sparda_core.bench.verdict.limits import strata_of
from sparda_core.simulator.step_models import FULL, STEP_MODELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCATTER, MODELS = "scatter.png", "models.png"
_COLOURS = {"compute": BLUE, "balanced": GREEN, "link": ORANGE, HOST: GREY}
_MARKERS = {"earlier": ".", "interpolated": "o", "combination": "D", "axis": "^", "sweep": "s", "crossover": "v"}
_OTHER = "P"
#: Errors are drawn up to here; what is farther off stands at the edge.
_EDGE = 0.25
#: Cells of a stratum that is worth a panel.
_FEWEST = 4
_MODEL_COLOURS = (BLUE, SKY, ORANGE, GREEN, GREY, RED)


def plot_scatter(verdict: Verdict, path: Path) -> None:
    """Write a PNG: measured against predicted tokens/s, and the error by how long copies take beside compute."""
    figure = new_figure(14, 6)
    figure.suptitle(_title(verdict), fontsize=10)
    left, right = figure.subplots(1, 2)
    _rates(left, verdict.measured)
    _errors(right, verdict.measured)
    save_figure(figure, path)


def plot_models(verdict: Verdict, path: Path) -> None:
    """Write a PNG: of every model, which share of the cells is within which error, a panel a stratum of some size."""
    strata = [item for item in strata_of(verdict.measured).items() if len(item[1]) >= _FEWEST]
    columns = max(1, min(3, len(strata)))
    rows = max(1, -(-len(strata) // columns))
    figure = new_figure(5 * columns, 0.6 + 3.6 * rows)
    figure.suptitle(f"{_title(verdict)}: error by model", fontsize=10)
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (stratum, cells) in zip(every, strata, strict=False):
        _cumulative(axes, stratum, cells)
    for axes in every[len(strata) :]:
        axes.set_axis_off()
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=6, loc="outside lower center")
    save_figure(figure, path)


def _title(verdict: Verdict) -> str:
    return f"{verdict.title}; profile {verdict.profile.get('name', '?')} of {verdict.profile.get('date', '?')}"


def _look(cell: Judged) -> tuple[str, str]:
    return _COLOURS.get(cell.stratum, GREY), _MARKERS.get(cell.tier, _OTHER)


def _rates(axes: Axes, cells: Sequence[Judged]) -> None:
    points = [rates for cell in cells if (rates := cell.rates()) is not None]
    if points:
        ends = [0.8 * min(map(min, points)), 1.25 * max(map(max, points))]
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.fill_between(ends, [0.95 * x for x in ends], [1.05 * x for x in ends], color="black", alpha=0.1,
                          label="within 5 %")  # fmt: skip
    for cell in cells:
        rates = cell.rates()
        if rates is not None:
            colour, marker = _look(cell)
            spread = (cell.repeatability or 0.0) * rates[0] / 2
            axes.errorbar(rates[0], rates[1], xerr=spread or None, color=colour, marker=marker, markersize=6, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured tokens/s (bar: what the machine does not repeat)")
    axes.set_ylabel("predicted tokens/s")
    _legend(axes, cells)
    axes.grid(alpha=0.3)


def _legend(axes: Axes, cells: Sequence[Judged]) -> None:
    for stratum in dict.fromkeys(cell.stratum for cell in cells):
        axes.plot([], [], "s", color=_COLOURS.get(stratum, GREY), label=stratum)
    for tier in dict.fromkeys(cell.tier for cell in cells):
        axes.plot([], [], _MARKERS.get(tier, _OTHER), color="black", linestyle="", label=tier)
    axes.legend(fontsize=8)


def _errors(axes: Axes, cells: Sequence[Judged]) -> None:
    """Signed errors, cells in order of their measured time."""
    ordered = sorted(cells, key=lambda cell: cell.measured_s or 0.0)
    for at, cell in enumerate(ordered):
        error, (colour, marker) = cell.error() or 0.0, _look(cell)
        shown = max(-_EDGE, min(_EDGE, error))
        axes.plot(at, 100 * shown, marker, color=colour, markersize=6, fillstyle="full" if shown == error else "none")
        if shown != error:
            axes.annotate(f"{100 * error:+.0f} %", (at, 100 * shown), fontsize=7, ha="center", rotation=90,
                          va="top" if error > 0 else "bottom", xytext=(0, -5 if error > 0 else 5),
                          textcoords="offset points")  # fmt: skip
        if cell.repeatability is not None:
            half = 50 * cell.repeatability
            axes.plot([at, at], [-half, half], color="black", linewidth=1.5, alpha=0.5)
    axes.axhspan(-5, 5, color="black", alpha=0.08)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks([])
    axes.set_xlabel("cells, the shortest step first (black: what the machine does not repeat)")
    axes.set_ylabel("error of predicted tokens/s, %")
    axes.grid(axis="y", alpha=0.3)


def _cumulative(axes: Axes, stratum: str, cells: Sequence[Judged]) -> None:
    for (name, _), colour in zip(STEP_MODELS.items(), _MODEL_COLOURS, strict=True):
        errors = sorted(abs(error) for cell in cells if (error := cell.error(name)) is not None)
        if errors:
            shares = np.arange(len(errors) + 1) / len(errors)
            dashes = "--" if STEP_MODELS[name].run is None else "-"
            axes.step([0.0, *(100 * error for error in errors)], 100 * shares, where="post", color=colour, label=name,
                      linewidth=2.5 if name == FULL else 1.2, linestyle=dashes)  # fmt: skip
    axes.set_xlim(0, 100 * _EDGE)
    axes.set_ylim(0, 102)
    axes.set_title(f"{stratum}: {len(cells)} cells", fontsize=9)
    axes.set_xlabel("absolute error of tokens/s, %", fontsize=8)
    axes.set_ylabel("cells within it, %", fontsize=8)
    axes.grid(alpha=0.3)
