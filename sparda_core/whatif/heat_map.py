"""Heat map over two knobs: a value of the best choice, or how much faster one choice is than another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from sparda_core.whatif.figures import axis_label, new_figure, short, value_named
from sparda_core.whatif.frontier import Between, cells, pairs
from sparda_core.whatif.plots import Labels, check_numeric, held, title_of
from sparda_core.whatif.row import Row, Status
from sparda_core.whatif.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sparda_core.whatif.figures import Value

#: Cells that still hold a readable number.
MOST_NUMBERS = 160
#: Cells that also hold the name of what is fastest there.
MOST_NAMES = 60
WHY = {Status.NO_MEMORY: "does not fit into memory", Status.IMPOSSIBLE: "impossible"}
#: Hatches of cells without a time.
HATCHES = {Status.NO_MEMORY: "////", Status.IMPOSSIBLE: "...."}


def plot_heat(
    study: Study, x: str, y: str, *, value: str = "tokens_per_s", between: Between | None = None,
    at: Labels | None = None,
) -> Figure:  # fmt: skip
    """A map over two numeric knobs: a value of the best choice, or how much faster one of two choices is.

    Cells without a time are hatched; the heavy line runs where the faster choice changes.
    """
    for name in (x, y):
        check_numeric(study.grid, name)
    compared = tuple(between.first) if between is not None else ()
    free = [axis.name for axis in study.grid.axes if axis.chosen and axis.name not in (x, y, *compared, *(at or {}))]
    fixed = held(study, (x, y, *compared), at or {}, free)
    shown = attrs.evolve(study, rows=tuple(row for row in study.rows if _matches(row, fixed)))
    if between is not None:
        free = []
        tiles = [_pair_tile(pair.given, pair.first, pair.second, pair.speedup) for pair in pairs(shown, between)]
        what = f"tokens/s of {between.names[1]} by that of {between.names[0]}"
    else:
        drawn = value_named(value)
        tiles = [_best_tile(cell.given, cell.rows, cell.ranked, drawn, free) for cell in cells(shown, free)]
        what = drawn.label + (" of the fastest choice" if free else "")
    figure = new_figure(9.0, 6.0)
    _draw_tiles(figure, study, (x, y), tiles, what, diverging=between is not None)
    figure.axes[0].set_title(title_of(study, fixed), fontsize=9)
    return figure


@attrs.frozen(kw_only=True)
class Tile:
    """One cell of a heat map: its place, its number, who is ahead, why there is no number.

    name  of who is ahead, where the figure is to show it
    """

    given: Labels
    number: float | None
    winner: str
    status: Status
    name: str = ""


def _best_tile(given: Labels, rows: Sequence[Row], ranked: Sequence[Row], drawn: Value, free: Sequence[str]) -> Tile:
    if ranked:
        winner = ", ".join(short(ranked[0].labels[name]) for name in free)
        return Tile(given=given, number=drawn.of(ranked[0]), winner=winner, status=Status.FITS, name=winner)
    return _no_tile(given, rows)


def _pair_tile(given: Labels, first: Row | None, second: Row | None, speedup: float | None) -> Tile:
    if speedup is not None:
        return Tile(given=given, number=speedup, winner="second" if speedup > 1 else "first", status=Status.FITS)
    return _no_tile(given, [row for row in (first, second) if row is not None])


def _no_tile(given: Labels, rows: Sequence[Row]) -> Tile:
    short_of = any(row.status == Status.NO_MEMORY for row in rows)
    return Tile(given=given, number=None, winner="", status=Status.NO_MEMORY if short_of else Status.IMPOSSIBLE)


def _draw_tiles(
    figure: Figure, study: Study, names: tuple[str, str], tiles: Sequence[Tile], what: str, *, diverging: bool
) -> None:
    from matplotlib.colors import LogNorm, Normalize

    columns, rows = (sorted(label for label in study.grid.axis(name).labels if label is not None) for name in names)
    numbers = [[math.nan] * len(columns) for _ in rows]
    placed = [tile for tile in tiles if all(tile.given[name] is not None for name in names)]
    by_place = {(rows.index(tile.given[names[1]]), columns.index(tile.given[names[0]])): tile for tile in placed}
    for (row, column), tile in by_place.items():
        numbers[row][column] = math.nan if tile.number is None else tile.number
    real = [number for number in itertools.chain.from_iterable(numbers) if not math.isnan(number)] or [1.0]
    spread = max(1.05, *real, 1 / min(real)) if diverging else 1.0
    norm = LogNorm(1 / spread, spread) if diverging else Normalize(min(real), max(real) or 1.0)
    axes = figure.subplots()
    colours = "RdBu" if diverging else "cividis"
    mesh = axes.pcolormesh(numbers, cmap=colours, norm=norm, edgecolors="white", linewidth=0.5)
    for (row, column), tile in by_place.items():
        _fill(axes, row, column, tile, mesh.cmap(norm(tile.number or 1.0)), len(by_place))
    _edges(axes, by_place)
    _legend(axes, {tile.status for tile in placed if tile.number is None})
    axes.set_xticks([at + 0.5 for at in range(len(columns))], [short(label) for label in columns], rotation=45)
    axes.set_yticks([at + 0.5 for at in range(len(rows))], [short(label) for label in rows])
    axes.set_xlabel(axis_label(names[0]))
    axes.set_ylabel(axis_label(names[1]))
    bar = figure.colorbar(mesh, ax=axes, label=what)
    if diverging:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        bar.ax.yaxis.set_major_locator(MaxNLocator(6))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.2f}"))
        bar.ax.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _fill(axes: Axes, row: int, column: int, tile: Tile, colour: Sequence[float], count: int) -> None:
    from matplotlib.patches import Rectangle

    if tile.number is None:
        hatch = HATCHES[tile.status]
        axes.add_patch(
            Rectangle((column, row), 1, 1, facecolor="#EEEEEE", edgecolor="#777777", hatch=hatch, linewidth=0)
        )
    elif count <= MOST_NUMBERS:
        bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 0.5
        axes.text(
            column + 0.5, row + 0.5, _text(tile, count), ha="center", va="center", fontsize=7,
            color="black" if bright else "white",
        )  # fmt: skip


def _text(tile: Tile, count: int) -> str:
    assert tile.number is not None
    number = f"{tile.number:,.0f}" if tile.number >= 100 else f"{tile.number:.3g}"
    return f"{number}\n{tile.name}" if tile.name and count <= MOST_NAMES else number


def _edges(axes: Axes, tiles: Mapping[tuple[int, int], Tile]) -> None:
    """A heavy line between neighbours with another winner; both must have one."""
    for (row, column), tile in tiles.items():
        right, above = tiles.get((row, column + 1)), tiles.get((row + 1, column))
        if right and tile.winner and right.winner and tile.winner != right.winner:
            axes.plot([column + 1, column + 1], [row, row + 1], color="black", linewidth=2.2)
        if above and tile.winner and above.winner and tile.winner != above.winner:
            axes.plot([column, column + 1], [row + 1, row + 1], color="black", linewidth=2.2)


def _legend(axes: Axes, lacking: set[Status]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor="#EEEEEE", edgecolor="#777777", hatch=HATCHES[status], label=WHY[status])
        for status in sorted(lacking)
    ]
    if patches:
        axes.legend(handles=patches, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, frameon=False)


def _matches(row: Row, fixed: Labels) -> bool:
    return all(row.labels[name] == label for name, label in fixed.items())
