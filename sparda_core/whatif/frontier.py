"""What comes out of a study: the best choice in every cell, the frontier of speed against memory, and speed-ups."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from sparda_core.errors import ConfigError
from sparda_core.whatif.axes import parse_axis
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.row import Row
from sparda_core.whatif.study import Study

#: Also a choice on a frontier: more rows are more tokens/s for more memory.
LOAD = "batch"


@attrs.frozen(kw_only=True)
class Cell:
    """Rows that share everything that is given: they differ in what one is free to choose.

    given  axis -> label
    """

    given: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def ranked(self) -> list[Row]:
        """Rows that fit, fastest first (tokens/s); equal ones in the order of the grid."""
        fit = (row for row in self.rows if row.fits)
        return sorted(fit, key=lambda row: (-_speed(row), row.point))

    @property
    def frontier(self) -> list[Row]:
        """Rows that no other row beats in tokens/s without needing more device memory; least memory first."""
        kept: list[Row] = []
        for row in sorted(self.ranked, key=lambda row: (row.device_bytes or 0, -_speed(row), row.point)):
            if not kept or _speed(row) > _speed(kept[-1]):
                kept.append(row)
        return kept


@attrs.frozen(kw_only=True)
class Pair:
    """Two rows that differ in one thing; `speedup` is how many times faster the second is, None where one is missing.

    given  axis -> label of what they share
    """

    given: dict[str, Any]
    first: Row | None
    second: Row | None

    @property
    def speedup(self) -> float | None:
        """Tokens/s of the second by that of the first."""
        if self.first is None or self.second is None or not (self.first.fits and self.second.fits):
            return None
        return _speed(self.second) / _speed(self.first)


@attrs.frozen(kw_only=True)
class Between:
    """Two values of one axis, or of several that change together, to be compared: axis -> label."""

    first: dict[str, Any]
    second: dict[str, Any]

    @property
    def names(self) -> tuple[str, str]:
        """What to call the two."""
        return " ".join(map(str, self.first.values())), " ".join(map(str, self.second.values()))


def _speed(row: Row) -> float:
    assert row.tokens_per_s is not None, row
    return row.tokens_per_s


def cells_of(grid: Grid, choices: Iterable[str] | None = None) -> set[str]:
    """Axes on which one may choose: those named, or those of CHOICES; raises ConfigError for a name that is no axis."""
    if choices is None:
        return {axis.name for axis in grid.axes if axis.chosen}
    return {grid.axis(name.replace("-", "_")).name for name in choices}


def cells(study: Study, choices: Iterable[str] | None = None) -> list[Cell]:
    """The study cut into cells, in the order of the grid. `choices`: see `cells_of`."""
    free = cells_of(study.grid, choices)
    return [Cell(given=given, rows=rows) for given, rows in _grouped(study.rows, free)]


def frontiers(study: Study, choices: Iterable[str] | None = None) -> list[Cell]:
    """Cells in which the batch, too, is a choice."""
    free = cells_of(study.grid, choices)
    return cells(study, free | {axis.name for axis in study.grid.axes if axis.name == LOAD})


def pairs(study: Study, between: Between) -> list[Pair]:
    """First and second of every cell that holds one of them; raises ConfigError for a label that is not on the grid."""
    _check_labels(study.grid, between)
    found = []
    for given, group in _grouped(study.rows, between.first.keys()):
        first, second = (next((r for r in group if _has(r, side)), None) for side in (between.first, between.second))
        if first is not None or second is not None:
            found.append(Pair(given=given, first=first, second=second))
    return found


def _has(row: Row, labels: Mapping[str, Any]) -> bool:
    return all(row.labels[name] == label for name, label in labels.items())


def _grouped(rows: Iterable[Row], free: Collection[str]) -> list[tuple[dict[str, Any], tuple[Row, ...]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple((name, label) for name, label in row.labels.items() if name not in free)
        groups.setdefault(key, []).append(row)
    return [(dict(key), tuple(group)) for key, group in groups.items()]


def parse_between(texts: Sequence[str]) -> Between:
    """`NAME=FIRST,SECOND`, once or several times; raises ConfigError for anything but two values each."""
    axes = [parse_axis(text) for text in texts]
    for (name, values), text in zip(axes, texts, strict=True):
        if len(values) != 2:
            raise ConfigError(f"between {text!r} must name two different values, such as {name}=FIRST,SECOND")
    names = [name for name, _ in axes]
    if len(set(names)) < len(names):
        raise ConfigError(f"between {' '.join(texts)!r} names a knob twice")
    first, second = zip(*(values for _, values in axes), strict=True)
    return Between(first=dict(zip(names, first, strict=True)), second=dict(zip(names, second, strict=True)))


def with_between(axes: Mapping[str, Any], between: Between | None) -> tuple[dict[str, Any], Between | None]:
    """Axes that hold both sides of a comparison, and the comparison in their labels.

    Knobs that are axes already keep their values and get those that they lack; others become one axis of two labels.
    """
    if between is None:
        return dict(axes), None
    given = [name for name in between.first if name in axes]
    if not given:
        sides = dict(zip(_labels(between), (between.first, between.second), strict=True))
        if len(between.first) == 1:
            (name,) = between.first
            return {**axes, name: (between.first[name], between.second[name])}, between
        first, second = sides
        return {**axes, "between": sides}, Between(first={"between": first}, second={"between": second})
    wanted = {name: (between.first[name], between.second[name]) for name in between.first}
    merged = {name: tuple(dict.fromkeys(itertools.chain(axes.get(name, ()), two))) for name, two in wanted.items()}
    return {**axes, **merged}, between


def _labels(between: Between) -> tuple[str, str]:
    first, second = (" x ".join(map(str, side.values())) for side in (between.first, between.second))
    return first, second


def _check_labels(grid: Grid, between: Between) -> None:
    for side in (between.first, between.second):
        for name, label in side.items():
            labels = grid.axis(name).labels
            if label not in labels:
                has = ", ".join(map(str, labels))
                raise ConfigError(f"between: {name}={label!r} is not on the grid, which has {has}")
