"""Lines over one knob, and what every figure of a study says about itself."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.whatif.figures import (
    COLOURS,
    MARKERS,
    Value,
    axis_label,
    new_figure,
    short,
    told,
    value_named,
)
from sparda_core.whatif.frontier import Cell, cells
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import Row, Status
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Knobs that a title names even at their defaults.
ALWAYS_TOLD = ("shape", "profile", "batch", "context", "selector", "runtime")
TITLE_WIDTH = 110
Labels = Mapping[str, Any]


def held(study: Study, axes: Sequence[str], at: Labels, choices: Sequence[str]) -> dict[str, Any]:
    """Where the axes that a figure does not show are held: as told, else at their first label.

    raises  ConfigError for an axis or a label that is not on the grid
    """
    for name, label in at.items():
        if label not in study.grid.axis(name).labels:
            raise ConfigError(f"at {name}={label!r} is not on the grid; it has {study.grid.axis(name).labels}")
    rest = (axis for axis in study.grid.axes if axis.name not in axes and axis.name not in choices)
    told_so = {name: label for name, label in at.items() if name not in axes}
    return {axis.name: axis.labels[0] for axis in rest} | told_so


def plot_lines(
    study: Study, x: str, *, value: str = "tokens_per_s", at: Labels | None = None, crossings: Sequence[float] = ()
) -> Figure:
    """One line for each choice, over a numeric knob. Crossovers are dashed; what does not fit is a cross below."""
    free = [axis.name for axis in study.grid.axes if axis.chosen and axis.name not in (x, *(at or {}))]
    fixed = held(study, (x,), at or {}, free)
    check_numeric(study.grid, x)
    drawn = value_named(value)
    groups = [cell for cell in cells(study, [x]) if all(cell.given[name] == label for name, label in fixed.items())]
    possible = [cell for cell in groups if any(row.status != Status.IMPOSSIBLE for row in cell.rows)]
    shown = sorted(sorted(possible, key=_peak, reverse=True)[: len(COLOURS)], key=possible.index)
    figure = new_figure()
    axes = figure.subplots()
    for at_line, cell in enumerate(shown):
        name = told({key: label for key, label in cell.given.items() if key in free}) or drawn.label
        _line(axes, cell.rows, x, drawn, name, at_line)
    for value_x in crossings:
        axes.axvline(value_x, color="black", linestyle="--", linewidth=1)
        axes.annotate(f" {value_x:.4g}", (value_x, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    if any(row.status == Status.NO_MEMORY for cell in possible for row in cell.rows):
        axes.plot([], [], "x", color="grey", label="does not fit into memory")
    _finish_lines(axes, study, x, drawn, fixed)
    if len(shown) < len(possible):
        axes.legend(fontsize=8, title=f"the {len(shown)} fastest of {len(possible)}", title_fontsize=8)
    return figure


def _peak(cell: Cell) -> float:
    return max((row.tokens_per_s or 0.0 for row in cell.rows), default=0.0)


def _line(axes: Axes, rows: Sequence[Row], x: str, drawn: Value, name: str, turn: int) -> None:
    points = sorted((row for row in rows if row.labels[x] is not None), key=lambda row: row.labels[x])
    colour, marker = COLOURS[turn], MARKERS[turn]
    places = [row.labels[x] for row in points]
    values = [v if (v := drawn.of(row)) is not None and row.fits else math.nan for row in points]
    axes.plot(places, values, color=colour, marker=marker, markersize=5, linewidth=1.6, label=name)
    lost = [row.labels[x] for row in points if not row.fits]
    # Crosses of several lines stand above each other.
    axes.plot(
        lost, [0.015 + 0.03 * turn] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform(), markersize=6
    )


def _finish_lines(axes: Axes, study: Study, x: str, drawn: Value, fixed: Labels) -> None:
    labels = [label for label in study.grid.axis(x).labels if label is not None]
    if min(labels) > 0 and max(labels) / min(labels) >= 8:
        axes.set_xscale("log", base=2 if all(isinstance(label, int) for label in labels) else 10)
        if len(labels) <= 12:
            axes.set_xticks(labels, [short(label) for label in labels], minor=False)
            axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(axis_label(x))
    axes.set_ylabel(drawn.label)
    axes.set_title(title_of(study, fixed), fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def check_numeric(grid: Grid, name: str) -> None:
    """Raise ConfigError unless the grid has at least two numbers on that axis."""
    labels = [label for label in grid.axis(name).labels if label is not None]
    if len(labels) < 2 or not attrs.evolve(grid.axis(name), labels=tuple(labels)).numeric:
        raise ConfigError(f"{name} has no two numbers on the grid, so there is no figure over it; name a numeric axis")


def title_of(study: Study, fixed: Labels) -> str:
    """What is the same in the whole figure, and that nothing in it was measured."""
    base, usual = study.grid.base, Scenario()
    turned = {knob for axis in study.grid.axes for knob in axis.knobs}
    says = {
        name: getattr(base, name)
        for name in Scenario.knobs()
        if name not in turned and (name in ALWAYS_TOLD or getattr(base, name) != getattr(usual, name))
    }
    text = textwrap.fill(told(says | dict(fixed)), TITLE_WIDTH)
    return f"{text}\npredicted, not measured"
