"""Question: what a what-if command asks for, put together from its options and checked before anything is run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.whatif.axes import ends, knob_named, parse_axis, value_of
from sparda_core.whatif.crossover import Asked, Found
from sparda_core.whatif.figures import require_matplotlib, value_named
from sparda_core.whatif.frontier import Between, cells_of, parse_between, with_between
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.plots import check_numeric
from sparda_core.whatif.scenario import Scenario


@attrs.frozen(kw_only=True)
class Question:
    """What is to be computed and shown.

    grid       every point, both sides of a comparison among them
    cells      the grid without the crossover's knob and the comparison
    between    what is compared; crossover: along what
    choices    axes on which one may choose; None: the usual ones
    plots      one or two axes a figure
    at         axis -> label at which figures hold it
    """

    grid: Grid
    cells: Grid
    between: Between | None
    crossover: Asked | None
    choices: tuple[str, ...] | None
    plots: tuple[tuple[str, ...], ...]
    at: dict[str, Any]

    def settings(self, side: int) -> dict[str, Any]:
        """Knob -> value of the first (0) or the second (1) of a comparison."""
        assert self.between is not None
        labels = (self.between.first, self.between.second)[side]
        turned: dict[str, Any] = {}
        for name, label in labels.items():
            axis = self.grid.axis(name)
            turned |= axis.settings[axis.labels.index(label)]
        return turned

    def marks(self, axis: str, found: Sequence[Found]) -> list[float]:
        """Crossovers to be drawn over an axis: those of the cell at which the figure stands."""
        if self.crossover is None or self.crossover.knob != axis:
            return []
        here = {one.name: self.at.get(one.name, one.labels[0]) for one in self.cells.axes}
        same = (one.crossovers for one in found if one.given == here)
        return [crossing.at for one in same if one is not None for crossing in one.crossings]


def question(base: Scenario, args: Namespace) -> Question:
    """The question of parsed options; raises UnknownNameError or ConfigError for anything that cannot be answered."""
    axes = axes_of(args.grid, args.most_points)
    between = parse_between(args.between) if args.between else None
    crossover = _crossover(args.crossover, axes, args.lead_by, between)
    full, between = with_between(axes, between)
    grid = Grid(base=base, axes=full, most=args.most_points)
    if len(grid.axes) == 0:
        raise ConfigError("there is nothing to vary; give --grid KNOB=VALUES, --between or --study NAME")
    apart = {*(between.first if between else ()), *([crossover.knob] if crossover else ())}
    cells = Grid(base=base, axes={name: labels for name, labels in axes.items() if name not in apart})
    choices = tuple(cells_of(grid, args.choose)) if args.choose else None
    return Question(
        grid=grid, cells=cells, between=between, crossover=crossover, choices=choices, plots=_plots(args, grid),
        at=dict(_at(text, grid) for text in args.at),
    )  # fmt: skip


def axes_of(texts: Sequence[str], most: int) -> dict[str, tuple[Any, ...]]:
    """Axes from text; raises ConfigError where one knob comes twice."""
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, values = parse_axis(text, most=most)
        if name in axes:
            raise ConfigError(f"grid {text!r}: {name} is an axis already; list all its values at once")
        axes[name] = values
    return axes


def _crossover(text: str | None, axes: dict[str, Any], lead: float, between: Between | None) -> Asked | None:
    if text is None:
        return None
    if between is None:
        raise ConfigError(f"crossover {text!r} needs two choices: give --between KNOB=FIRST,SECOND")
    name, separator, span = text.partition("=")
    knob = knob_named(name)
    if knob.name in between.first:
        raise ConfigError(f"crossover {text!r}: {knob.name} is what is compared; vary another knob")
    if separator:
        low, high = ends(knob, span)
    elif knob.numeric and len([label for label in axes.get(knob.name, ()) if label is not None]) > 1:
        labels = [label for label in axes[knob.name] if label is not None]
        low, high = min(labels), max(labels)
    else:
        raise ConfigError(f"crossover {text!r} needs a range: give {knob.name}=LOW:HIGH, or an axis of numbers")
    return Asked(knob=knob.name, low=low, high=high, lead=lead)


def _plots(args: Namespace, grid: Grid) -> tuple[tuple[str, ...], ...]:
    plots = tuple(tuple(name.strip().replace("-", "_") for name in text.split(",")) for text in args.plot)
    for names, text in zip(plots, args.plot, strict=True):
        if not 1 <= len(set(names)) == len(names) <= 2:
            raise ConfigError(f"plot {text!r} must be one axis (lines) or two different ones (heat map), as in a,b")
        for name in names:
            check_numeric(grid, name)
    value_named(args.value)
    for option in ("resume", "plot"):
        if getattr(args, option) and args.out is None:
            raise ConfigError(f"--{option} needs a folder: give --out DIR")
    if plots:
        require_matplotlib()
    return plots


def _at(text: str, grid: Grid) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"at {text!r} must be KNOB=VALUE")
    knob = knob_named(name)
    axis, label = grid.axis(knob.name), value_of(knob, value)
    if label not in axis.labels:
        raise ConfigError(f"at {text!r} is not on the grid, which has {', '.join(map(str, axis.labels))}")
    return axis.name, label
